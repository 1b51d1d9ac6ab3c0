// Tests the handling of workers' output: pipes, log files, full disks, formats.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/exit_codes.h"
#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/host_has.h"
#include "tests/support/small_disk.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;
using testing::Not;

using std::chrono::seconds;

class LauncherOutputTest : public LauncherTest {
 protected:
  // Returns the directory of the only run below `logs`.
  std::string run_directory(const std::string& logs) const {
    for (const auto& entry : std::filesystem::directory_iterator(directory_ / logs)) {
      return entry.path();
    }
    return "";
  }
  // Starts ddprun with the stream redirections of a shell.
  std::unique_ptr<ChildProcess> start_redirected(const std::string& redirection,
                                                 const Arguments& arguments) const {
    return std::make_unique<ChildProcess>(
        joined({"sh", "-c", "exec \"$0\" \"$@\" " + redirection, program("ddprun")}, arguments),
        environment());
  }
};

// --- lines

TEST_F(LauncherOutputTest, ASingleWorkersBytesComeAsTheyAreWritten) {
  const std::string bytes("\x00\xff\xfe\n10%\r20%\r\n\x80 end\n", 19);
  std::ofstream(directory_ / "bytes", std::ios::binary) << bytes;
  auto job = start({"cat", "bytes"});
  ASSERT_EQ(job->wait(), 0);
  EXPECT_EQ(job->out(), bytes);
}

TEST_F(LauncherOutputTest, AProgressBarIsPassedOnAtOnceWithThePrefixInFrontOfEachUpdate) {
  auto job = start_shell({"--nproc-per-node=2"}, "[ $RANK = 1 ] || printf '10%%\\r'; " +
                                                     std::string(kUntilGo) +
                                                     "; [ $RANK = 1 ] || printf '20%%\\r\\n'");
  EXPECT_TRUE(job->wait_for_out("[rank 0] 10%\r")) << "before the worker goes on";
  let_go();
  ASSERT_EQ(job->wait(), 0);
  EXPECT_EQ(job->out(), "[rank 0] 10%\r[rank 0] 20%\r\n");
}

// The updates look like those of tqdm.
TEST_F(LauncherOutputTest, AnUpdateThatBeginsWithItsReturnIsPassedOnAtOnceAndWhole) {
  auto job = start_shell(
      {"--nproc-per-node=2"},
      "[ $RANK = 0 ] || exec sleep 1000; printf '\\r 50%%'; " + std::string(kUntilGo) +
          "; printf '\\r 99%%'; until [ -e on ]; do sleep 0.02; done; printf '\\n'; exit 3");
  EXPECT_TRUE(job->wait_for_out("\r[rank 0]  50%")) << "before the worker goes on";
  let_go();
  EXPECT_TRUE(job->wait_for_out("\r[rank 0]  99%"));
  std::ofstream(directory_ / "on");
  EXPECT_EQ(job->wait(), 3);
  EXPECT_EQ(job->out(), "\r[rank 0]  50%\r[rank 0]  99%\n");
}

TEST_F(LauncherOutputTest, WithJsonAnUpdateIsALineWhereverItsReturnIs) {
  auto job = start_shell({"--log-format=json"}, "printf '\\r 0%%\\r50%%\\r100%%\\nend\\r'");
  ASSERT_EQ(job->wait(), 0);
  std::vector<std::string> said;
  for (const std::string& line : lines_of(job->out())) {
    const nlohmann::json json = nlohmann::json::parse(line);
    EXPECT_FALSE(json.contains("partial")) << line;
    said.push_back(json["line"]);
  }
  EXPECT_EQ(said, (std::vector<std::string>{" 0%", "50%", "100%", "end"}));
}

TEST_F(LauncherOutputTest, WhatOneWorkerHasNotEndedIsPassedOnWhereNobodyElseWrites) {
  auto job = start_shell({}, until_go_after("printf 'name? '"));
  EXPECT_TRUE(job->wait_for_out("name? "));
  let_go();
  ASSERT_EQ(job->wait(), 0);
  EXPECT_EQ(job->out(), "name? \n");
}

TEST_F(LauncherOutputTest, ALastLineWithoutAnEndIsNotLostAndEndsWhenItsWorkerDoes) {
  auto job = start_shell({"--nproc-per-node=2"}, "printf 'last words of %s' $RANK");
  ASSERT_EQ(job->wait(), 0);
  EXPECT_THAT(job->out(), HasSubstr("[rank 0] last words of 0\n"));
  EXPECT_THAT(job->out(), HasSubstr("[rank 1] last words of 1\n"));
}

TEST_F(LauncherOutputTest, ALineWithoutEndNeedsBoundedMemory) {
  auto job = start_shell({"--nproc-per-node=2", "--local-ranks-filter=0"},
                         "head -c 50000000 /dev/zero | tr '\\0' x; echo; cat /proc/$PPID/status | "
                         "sed -n 's/^VmHWM: *//p'");
  ASSERT_EQ(job->wait(seconds(60)), 0);
  const std::string out = job->out();
  const std::size_t newline = out.find('\n');
  EXPECT_EQ(newline, std::string("[rank 0] ").size() + 50'000'000) << "no byte is lost";
  EXPECT_LT(std::stoi(out.substr(out.find("] ", newline) + 2)), 60'000) << "kB, at the most";
}

// --- prefixes

TEST_F(LauncherOutputTest, TorchrunsTemplateReplacesItsPrefix) {
  auto job =
      start({"--nproc-per-node=2", "-t", "1", "--role=trainer", "--log-dir=logs", "sh", "-c",
             "echo out; echo err >&2"},
            {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${role_name} ${local_rank} ${x}>"}});
  ASSERT_EQ(job->wait(), 0);
  EXPECT_THAT(job->out(), HasSubstr("<trainer 1 ${x}>out\n"));
  EXPECT_THAT(job->err(), HasSubstr("[rank 1] err\n")) << "-t 1 is about stdout";
}

// --- log files

TEST_F(LauncherOutputTest, LogsOfAnEarlierGenerationOfTheSameAttemptAreKept) {
  auto job = start_shell({"--nproc-per-node=1", "--max-restarts=1", "--log-dir=logs", "-r", "1"},
                         "echo $DDPRUN_GENERATION; exit $((1 - DDPRUN_GENERATION))");
  ASSERT_EQ(job->wait(), 0);
  EXPECT_EQ(read_file(run_directory("logs") + "/attempt_0/0/stdout.log"), "0\n");
  EXPECT_EQ(read_file(run_directory("logs") + "/attempt_1/0/stdout.log"), "1\n");
  EXPECT_EQ(job->out(), "");
}

TEST_F(LauncherOutputTest, LogFilesRotateAtLineEndsRedirectedAndTeed) {
  for (const std::string how : {"-r", "-t"}) {
    const std::string logs = "logs" + how;
    auto job = start({"--log-dir=" + logs, how, "1", "--log-max-bytes=64K", "seq", "30000"});
    ASSERT_EQ(job->wait(), 0);
    const std::string directory = run_directory(logs) + "/attempt_0/0";
    const std::string last = read_file(directory + "/stdout.log");
    const std::string before = read_file(directory + "/stdout.log.1");
    EXPECT_LE(last.size(), 65536u);
    EXPECT_LE(before.size(), 65536u);
    EXPECT_TRUE(before.ends_with("\n") && last.ends_with("\n30000\n")) << how;
    const std::vector<std::string> lines = lines_of(before + last);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      ASSERT_EQ(lines[i], std::to_string(30000 - lines.size() + 1 + i)) << how;
    }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 2);
  }
}

TEST_F(LauncherOutputTest, AFullDiskUnderTheLogsKillsAndStallsNobody) {
  const SmallDisk disk(directory_ / "disk", "size=256k");
  ASSERT_TRUE(disk.mounted()) << "this test needs root, for a mount";
  // Python would end with an exception if its own write failed.
  auto job = start_shell({"--nproc-per-node=2", "--log-dir=disk", "-r", "0:1", "-t", "1:1"},
                         "seq 1 200000 && echo $RANK is well >&2");
  ASSERT_EQ(job->wait(seconds(60)), 0) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("0 is well"));
  EXPECT_THAT(job->err(), HasSubstr("1 is well"));
  EXPECT_THAT(
      job->err(),
      HasSubstr("/attempt_0/0/stdout.log: No space left on device; output to it is dropped"));
  EXPECT_THAT(job->err(), HasSubstr(" bytes are missing: No space left on device"));
  EXPECT_TRUE(job->out().ends_with("[default1]:200000\n")) << "the console has everything";
}

TEST_F(LauncherOutputTest, OutputThatIsLostIsSaidAndTheJobHasNotEndedWell) {
  auto job = start_redirected(">/dev/full", {"--nproc-per-node=2", "--report-file=report", "sh",
                                             "-c", "echo important; echo $RANK is well >&2"});
  EXPECT_EQ(job->wait(), to_int(ExitCode::kFiles));
  EXPECT_THAT(job->err(),
              HasSubstr("ddprun: warning: standard output: No space left on device; output to it "
                        "is dropped until this is over, workers continue\n"));
  EXPECT_THAT(job->err(), HasSubstr("ddprun: warning: standard output: 38 bytes are missing: No "
                                    "space left on device\n"));
  EXPECT_THAT(job->err(), HasSubstr("0 is well"));
  EXPECT_THAT(job->err(), HasSubstr("1 is well"));
  const nlohmann::json report = nlohmann::json::parse(read_file(directory_ / "report"));
  EXPECT_EQ(report["exit_code"], to_int(ExitCode::kFiles));
  EXPECT_EQ(report["exit_code_of"], "ddprun");
  EXPECT_THAT(report["what"].get<std::string>(), HasSubstr("output of workers was lost"));
}

TEST_F(LauncherOutputTest, AWorkersOwnExitCodeIsMoreThanItsLostOutput) {
  auto job = start_redirected(">/dev/full 2>&1", {"sh", "-c", "echo important; exit 7"});
  EXPECT_EQ(job->wait(), 7);
  job = start_redirected(">/dev/full 2>&1", {"echo", "important"});
  EXPECT_EQ(job->wait(), to_int(ExitCode::kFiles)) << "although nothing can be said";
}

TEST_F(LauncherOutputTest, ALimitOfFileSizesIsAsAFullDisk) {
  ChildProcess job({"sh", "-c", "ulimit -f 8; exec \"$@\" >out", "sh", program("ddprun"),
                    "--nproc-per-node=2", "seq", "2000"},
                   environment());
  EXPECT_EQ(job.wait(), to_int(ExitCode::kFiles)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("standard output: File too large"));
}

// No file of ddprun may take the descriptors of closed standard streams.
TEST_F(LauncherOutputTest, StandardStreamsMayBeClosed) {
  auto job = start_redirected("<&- >&- 2>&-", {"--nproc-per-node=2", "--max-restarts=1", "sh", "-c",
                                               "echo out; echo err >&2; touch ran.$RANK"});
  EXPECT_EQ(job->wait(), 0);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "ran.0"));
  EXPECT_TRUE(std::filesystem::exists(directory_ / "ran.1"));
}

TEST_F(LauncherOutputTest, AFullDiskUnderTheConsoleKillsAndStallsNobody) {
  const SmallDisk disk(directory_ / "disk", "size=256k");
  ASSERT_TRUE(disk.mounted()) << "this test needs root, for a mount";
  auto job = start_redirected(">disk/out", {"--nproc-per-node=2", "seq", "200000"});
  EXPECT_EQ(job->wait(seconds(60)), to_int(ExitCode::kFiles));
  EXPECT_THAT(job->err(), HasSubstr("standard output: No space left on device; "));
  const std::size_t written = std::filesystem::file_size(directory_ / "disk/out");
  std::size_t all = 0;
  for (int i = 1; i <= 200000; ++i) all += 2 * ("[rank 0] " + std::to_string(i) + "\n").size();
  EXPECT_THAT(job->err(), HasSubstr("standard output: " + std::to_string(all - written) +
                                    " bytes are missing: No space left on device\n"));
}

TEST_F(LauncherOutputTest, AReaderWhoHasSeenEnoughIsNoTrouble) {
  ChildProcess job(
      {"sh", "-c", "{ \"$0\" seq 200000; echo ended with $? >&2; } | head -n 1", program("ddprun")},
      environment());
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "1\n");
  EXPECT_EQ(job.err(), "ended with 0\n");
}

TEST_F(LauncherOutputTest, AJobStartsAgainOnADiskThatIsFull) {
  const SmallDisk disk(directory_ / "disk", "size=64k,nr_inodes=8");
  ASSERT_TRUE(disk.mounted()) << "this test needs root, for a mount";
  auto job = start_shell(
      {"--nproc-per-node=1", "--max-restarts=1", "--log-dir=disk", "-r", "3"},
      "for i in 1 2 3 4 5 6 7 8; do touch disk/$i 2>/dev/null; done; [ $DDPRUN_GENERATION = 1 ]");
  EXPECT_EQ(job->wait(seconds(60)), 0) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("No space left on device; output to it is dropped"));
}

// --- formats

TEST_F(LauncherOutputTest, WithJsonEveryLineOfTheConsoleIsAnObject) {
  auto job =
      start_shell({"--nproc-per-node=2", "--log-format=json", "--max-restarts=0"},
                  "printf 'a\\377\\n'; echo e >&2; [ $RANK = 0 ] || exec sleep 1000; exit 3");
  EXPECT_EQ(job->wait(), 3);
  int workers = 0;
  int own = 0;
  for (const std::string& line : lines_of(job->out() + job->err())) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    ASSERT_TRUE(json.is_object()) << line;
    EXPECT_EQ(json["generation"], 0);
    workers +=
        json.contains("rank") && json["stream"] == (json["line"] == "e" ? "stderr" : "stdout");
    own += json.contains("level") && json["level"] == "error";
  }
  EXPECT_GE(workers, 2);
  EXPECT_GE(own, 3) << "the report";
  EXPECT_THAT(job->out(), HasSubstr("\"base64\":\"Yf8=\""));
}

TEST_F(LauncherOutputTest, QuietLeavesOnlyWhatIsWrongAndVerboseTellsMore) {
  const std::string script = "echo out; [ $DDPRUN_GENERATION = 1 ]";
  auto plain = start_shell({"--max-restarts=1"}, script);
  ASSERT_EQ(plain->wait(), 0);
  EXPECT_THAT(plain->err(), HasSubstr("succeeded after 1 of 1 restarts"));
  EXPECT_THAT(plain->err(), Not(HasSubstr(" runs as pid ")));
  auto quiet = start_shell({"--max-restarts=1", "--quiet"}, script);
  ASSERT_EQ(quiet->wait(), 0);
  EXPECT_EQ(quiet->out(), "out\nout\n");
  EXPECT_THAT(quiet->err(), Not(HasSubstr("succeeded")));
  auto verbose = start_shell({"--max-restarts=1", "--verbose"}, script);
  ASSERT_EQ(verbose->wait(), 0);
  EXPECT_THAT(verbose->err(), HasSubstr("rank 0 (local rank 0) runs as pid "));
  auto failed = start_shell({"--quiet"}, "exit 7");
  EXPECT_EQ(failed->wait(), 7);
  EXPECT_THAT(failed->err(), HasSubstr("first failure: rank 0"));
}

// --- standard input

TEST_F(LauncherOutputTest, OnlyRankZeroReadsTheInputAndOnlyWhereItIsAskedFor) {
  std::ofstream(directory_ / "input") << "one\ntwo\n";
  ChildProcess::Options options = environment();
  options.input = directory_ / "input";
  const std::string script = "echo $RANK $(cat | tr '\\n' +)";
  ChildProcess with({program("ddprun"), "--nproc-per-node=2", "--stdin", "sh", "-c", script},
                    options);
  ASSERT_EQ(with.wait(), 0);
  EXPECT_THAT(with.out(), HasSubstr("[rank 0] 0 one+two+\n"));
  EXPECT_THAT(with.out(), HasSubstr("[rank 1] 1\n"));
  ChildProcess without({program("ddprun"), "--nproc-per-node=2", "sh", "-c", script}, options);
  ASSERT_EQ(without.wait(), 0);
  EXPECT_THAT(without.out(), HasSubstr("[rank 0] 0\n"));
}

// --- a terminal for workers

TEST_F(LauncherOutputTest, WithPtyWorkersHaveATerminalOfTheirOwn) {
  if (!testing_support::host_has_pseudo_terminals())
    GTEST_SKIP() << testing_support::kNoPseudoTerminals;
  auto job =
      start_shell({"--nproc-per-node=2", "--pty", "--log-dir=logs", "-t", "0:3"},
                  "test -t 1 && test -t 2 && [ ! -t 0 ] && echo $RANK $(stty size </dev/tty) "
                  "$(readlink /proc/$$/fd/1); printf 'err\\n' >&2; printf partial");
  ASSERT_EQ(job->wait(), 0);
  EXPECT_THAT(job->out(), HasSubstr("[default0]:0 24 80 /dev/pts/"));
  EXPECT_THAT(job->out(), HasSubstr("[rank 1] 1 24 80 /dev/pts/"));
  EXPECT_THAT(lines_of(job->out()), testing::IsSupersetOf({"[rank 1] err", "[rank 1] partial"}));
  EXPECT_THAT(job->out(), Not(HasSubstr("\r")));
  EXPECT_THAT(read_file(run_directory("logs") + "/attempt_0/0/stdout.log"),
              HasSubstr("\nerr\npartial"));
}

// The script prints what Python would print; Python need not be installed.
TEST_F(LauncherOutputTest, WithPtyAnInterruptOfAllShowsOneTraceback) {
  if (!testing_support::host_has_pseudo_terminals())
    GTEST_SKIP() << testing_support::kNoPseudoTerminals;
  auto job =
      start_shell({"--nproc-per-node=3", "--pty"},
                  "interrupted() { printf 'Traceback (most recent call last):\\n  File "
                  "\"train.py\", line 5, in "
                  "step\\n    work()\\nKeyboardInterrupt\\n' >&2; exit 1; }; trap interrupted INT; "
                  "echo running; while :; do sleep 0.02; done");
  for (const char* rank : {"0", "1", "2"}) {
    ASSERT_TRUE(job->wait_for_out("[rank " + std::string(rank) + "] running\n"));
  }
  job->signal(SIGINT);
  EXPECT_EQ(job->wait(), 130);
  const std::vector<std::string> said = lines_of(job->out());
  EXPECT_EQ(
      std::count_if(said.begin(), said.end(),
                    [](const std::string& line) { return line.ends_with("KeyboardInterrupt"); }),
      1)
      << job->out();
  EXPECT_THAT(job->err(), testing::ContainsRegex(
                              "KeyboardInterrupt also in rank [01], [12] at train.py:5, in step"));
}

TEST_F(LauncherOutputTest, TheReportOnAWorkerWithATerminalHasItsLastLines) {
  if (!testing_support::host_has_pseudo_terminals())
    GTEST_SKIP() << testing_support::kNoPseudoTerminals;
  auto job = start_shell({"--pty"}, "seq 1 30; echo the reason >&2; exit 5");
  EXPECT_EQ(job->wait(), 5);
  EXPECT_THAT(job->err(), HasSubstr("| 30\n"));
  EXPECT_THAT(job->err(), HasSubstr("| the reason\n"));
}

}  // namespace
}  // namespace ddprun::testing_support
