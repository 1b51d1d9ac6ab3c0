// Tests ddprun as a user sees it: output, environment, failures, bad input.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/final_error.h"
#include "base/rng.h"
#include "base/unique_fd.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/net/tcp_address.h"
#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/test_seed.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;
using testing::Not;

using std::chrono::seconds;

// --- output

TEST_F(LauncherTest, PassesLinesOnWithTheRankInFront) {
  auto job = start_shell({"--nproc-per-node=2"}, "echo out $RANK; echo err $RANK >&2");
  ASSERT_EQ(job->wait(), 0);
  std::vector<std::string> out = lines_of(job->out());
  std::sort(out.begin(), out.end());
  EXPECT_EQ(out, (Arguments{"[rank 0] out 0", "[rank 1] out 1"}));
  std::vector<std::string> err = lines_of(job->err());
  std::sort(err.begin(), err.end());
  EXPECT_EQ(err, (Arguments{"[rank 0] err 0", "[rank 1] err 1"}));
}

TEST_F(LauncherTest, ASingleWorkerSpeaksWithoutAPrefixAndItsLastLineNeedsNoEnd) {
  auto job = start_shell({}, "printf 'one\\ntwo'");
  ASSERT_EQ(job->wait(), 0);
  EXPECT_EQ(job->out(), "one\ntwo\n");
  EXPECT_EQ(job->err(), "");
}

TEST_F(LauncherTest, LinesOfManyWorkersNeverMix) {
  constexpr int kWorkers = 6;
  constexpr int kLines = 3000;
  // The script writes in pieces, so that lines are cut on their way.
  auto job =
      start_shell({"--nproc-per-node=" + std::to_string(kWorkers)},
                  "i=0; while [ $i -lt 3000 ]; do printf 'begin %s' $RANK; printf ' middle %s' $i; "
                  "printf ' end %s\\n' $RANK; i=$((i+1)); done");
  ASSERT_EQ(job->wait(seconds(60)), 0);
  std::map<int, int> next;
  for (const std::string& line : lines_of(job->out())) {
    int prefix = -1;
    int begin = -1;
    int middle = -1;
    int end = -1;
    ASSERT_EQ(std::sscanf(line.c_str(), "[rank %d] begin %d middle %d end %d", &prefix, &begin,
                          &middle, &end),
              4)
        << line;
    ASSERT_TRUE(prefix == begin && begin == end) << line;
    ASSERT_EQ(middle, next[prefix]++) << "the order of a worker's lines is kept";
  }
  for (int rank = 0; rank < kWorkers; ++rank) EXPECT_EQ(next[rank], kLines);
}

TEST_F(LauncherTest, AWorkerWritesToAReaderThatIsSlowAndLosesNothing) {
  // 20 MB go into a pipe that is read only after a while. The workers wait, and ddprun's
  // memory stays small.
  const std::string fifo = directory_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ChildProcess job({"sh", "-c",
                    "exec '" + program("ddprun") +
                        "' --nproc-per-node=2 sh -c 'yes 0123456789012345678901234567890 | "
                        "head -n 300000; touch done.$RANK' > fifo"},
                   environment());
  std::ifstream reader(fifo);
  std::string line;
  std::getline(reader, line);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "done.0")) << "nothing has been read yet";
  std::size_t count = 1;
  while (std::getline(reader, line)) ++count;
  EXPECT_EQ(count, 600000u);
  EXPECT_EQ(job.wait(), 0);
}

TEST_F(LauncherTest, RedirectsAndTeesIntoTorchrunsLayout) {
  auto job = start({"--nproc-per-node=2", "--rdzv-id=run7", "--log-dir=logs", "-r", "0:3", "-t",
                    "1:1", "sh", "-c", "echo out $RANK; echo err $RANK >&2"});
  ASSERT_EQ(job->wait(), 0);
  EXPECT_EQ(job->out(), "[default1]:out 1\n");
  EXPECT_EQ(job->err(), "[rank 1] err 1\n");
  std::vector<std::filesystem::path> runs;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ / "logs"))
    runs.push_back(entry.path());
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].filename().string().substr(0, 5), "run7_");
  EXPECT_EQ(read_file(runs[0] / "attempt_0/0/stdout.log"), "out 0\n");
  EXPECT_EQ(read_file(runs[0] / "attempt_0/0/stderr.log"), "err 0\n");
  EXPECT_EQ(read_file(runs[0] / "attempt_0/1/stdout.log"), "out 1\n");
  EXPECT_FALSE(std::filesystem::exists(runs[0] / "attempt_0/1/stderr.log"));
}

// --- the environment of a worker

TEST_F(LauncherTest, WorkersFindTheirPlaceInTheEnvironmentAndAStoreThatAnswers) {
  auto job = start_shell(
      {"--nproc-per-node=3", "--max-restarts=2"},
      "env | grep -E '^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|"
      "TORCHELASTIC_RESTART_COUNT|TORCHELASTIC_MAX_RESTARTS|TORCHELASTIC_USE_AGENT_STORE|"
      "DDPRUN_GENERATION)=' | sort | tr '\\n' ' '; echo; "
      "test -d $(dirname $TORCHELASTIC_ERROR_FILE) && echo dir ok");
  ASSERT_EQ(job->wait(), 0);
  const std::string out = job->out();
  EXPECT_THAT(out, HasSubstr("DDPRUN_GENERATION=0 GROUP_RANK=0 LOCAL_RANK=2 LOCAL_WORLD_SIZE=3 "
                             "MASTER_ADDR=127.0.0.1 "));
  EXPECT_THAT(out, HasSubstr("RANK=1 TORCHELASTIC_MAX_RESTARTS=2 TORCHELASTIC_RESTART_COUNT=0 "
                             "TORCHELASTIC_USE_AGENT_STORE=True WORLD_SIZE=3"));
  EXPECT_THAT(out, HasSubstr("[rank 0] dir ok"));
}

// The store of a job of one node. bash sends a PING and prints the answer.
TEST_F(LauncherTest, TheStoreOfOneNodeServesTheProcessesOfItsUserOnly) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  auto job = start_shell({"--standalone"},
                         "echo at $MASTER_ADDR/$MASTER_PORT end; until [ -e go ]; do sleep 0.02; "
                         "done");
  ASSERT_TRUE(job->wait_for_out(" end")) << job->err();
  const std::size_t begin = job->out().find("at ") + 3;
  const std::string at = job->out().substr(begin, job->out().find(" end") - begin);
  for (const char* user : {"0", "65534"}) {
    ChildProcess ping({"setpriv", std::string("--reuid=") + user, "--clear-groups", "bash", "-c",
                       "exec 3<>/dev/tcp/" + at +
                           " && printf '\\000\\316\\367\\205\\074\\015\\001\\002\\003\\004' >&3;"
                           " timeout 20 head -c4 <&3 | od -An -tx1; echo done"});
    EXPECT_EQ(ping.wait(), 0) << ping.err();
    EXPECT_EQ(ping.out().find("01 02 03 04") != std::string::npos, user == std::string("0"))
        << user << ": " << ping.out() << ping.err();
  }
  let_go();
  EXPECT_EQ(job->wait(), 0) << job->err();
}

TEST_F(LauncherTest, ThePortRangeHoldsForTheStoreAndIsToldToWorkers) {
  const Result<Listener> listener = listen_tcp("127.0.0.1", PortRange{20000, 29000});
  ASSERT_TRUE(listener);
  const int port = listener->address.port;  // the first port of the range is taken
  const std::string range = std::to_string(port) + "-" + std::to_string(port + 5);
  auto job = start_shell({"--port-range=" + range}, "echo $MASTER_PORT $DDPRUN_PORT_RANGE");
  ASSERT_EQ(job->wait(), 0) << job->err();
  std::istringstream out(job->out());
  int store = 0;
  std::string told;
  out >> store >> told;
  EXPECT_TRUE(store > port && store <= port + 5) << job->out();
  EXPECT_EQ(told, range);

  const std::string taken = std::to_string(port);
  auto none = start_shell({"--port-range=" + taken}, "true");
  EXPECT_NE(none->wait(), 0);
  EXPECT_THAT(none->err(), HasSubstr("every port of " + taken + "-" + taken + " is taken"));
}

TEST_F(LauncherTest, AWorkerStartsClean) {
  // The worker has its own session, default signals, stdin at its end, and no descriptor of
  // ddprun.
  auto job = start_shell(
      {},
      "cat; ls /proc/$$/fd; "  // no pipe, or the shell itself may still hold an end of it
      // The shell itself reads the file: while a shell forks for grep, its own signals are
      // blocked.
      "while read -r line; do case $line in Sig[BI]*) echo \"$line\";; esac; done "
      "< /proc/$$/status; "
      "[ $(ps -o sid= -p $$) = $$ ] && echo own session");
  ASSERT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->out(), HasSubstr("0\n1\n2\nSigBlk:\t0000000000000000"));
  EXPECT_THAT(job->out(), HasSubstr("SigIgn:\t0000000000000000"));
  EXPECT_THAT(job->out(), HasSubstr("own session"));
}

TEST_F(LauncherTest, AgentsTakeAllDescriptorsTheyMayWorkersWhatTheyWereGiven) {
  ChildProcess job({"sh", "-c",
                    "ulimit -Sn 256; exec '" + program("ddprun") + "' sh -c '" +
                        until_go_after("ulimit -Sn") + "'"},
                   environment());
  EXPECT_EQ(job.line(), "256");
  const std::string limits = read_file("/proc/" + std::to_string(tree_of(job).agent) + "/limits");
  std::istringstream row(limits.substr(limits.find("Max open files") + 14));
  std::string soft;
  std::string hard;
  row >> soft >> hard;
  EXPECT_EQ(soft, hard) << limits;
  let_go();
  EXPECT_EQ(job.wait(), 0) << job.err();
}

TEST_F(LauncherTest, RunsPythonScriptsAndModulesThroughPython) {
  std::ofstream(directory_ / "train.py")
      << "import os, sys\nprint('py', os.environ['RANK'], sys.argv[1:])\n";
  for (const Arguments& program :
       std::vector<Arguments>{{"train.py", "--x"}, {"-m", "train", "--x"}}) {
    auto job = start(joined({"--nproc-per-node=2"}, program));
    ASSERT_EQ(job->wait(), 0) << job->err();
    EXPECT_THAT(job->out(), HasSubstr("[rank 1] py 1 ['--x']"));
  }
  std::ofstream(directory_ / "python.sh") << "#!/bin/sh\necho interpreter \"$@\"\n";
  std::filesystem::permissions(directory_ / "python.sh", std::filesystem::perms::owner_all);
  auto chosen = start({"train.py"}, {{"PYTHON_EXEC", "./python.sh"}});
  ASSERT_EQ(chosen->wait(), 0) << chosen->err();
  EXPECT_EQ(chosen->out(), "interpreter -u train.py\n");
}

TEST_F(LauncherTest, DirectoryVariablesAndMaskOfWorkersCanBeChosen) {
  std::filesystem::create_directories(directory_ / "place/bin");
  std::ofstream(directory_ / "place/bin/tell")
      << "#!/bin/sh\npwd; umask; echo $A $B $OMP_NUM_THREADS $INHERITED; "
         "test -d ${TORCHELASTIC_ERROR_FILE%/*} && echo directory\n";
  std::filesystem::permissions(directory_ / "place/bin/tell", std::filesystem::perms::owner_all);
  const Arguments options{
      "--chdir=place",      "--env=A=1",   "--env",          "B=x=y",
      "--env=INHERITED=no", "--umask=027", "--log-dir=logs", "--env=OMP_NUM_THREADS=3"};
  auto job = start(joined(options, {"bin/tell"}), {{"INHERITED", "yes"}});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(job->out(), (directory_ / "place") + "\n0027\n1 x=y 3 no\ndirectory\n");
  EXPECT_TRUE(std::filesystem::exists(directory_ / "logs")) << "ddprun's own place is another one";
}

// --- failure

TEST_F(LauncherTest, EndsWithTheFirstFailuresCodeAndTellsItsStory) {
  auto job = start_shell({"--nproc-per-node=3"},
                         "if [ $RANK = 1 ]; then echo the reason >&2; exit 7; fi; exec sleep 1000");
  ASSERT_EQ(job->wait(), 7);
  const std::string err = job->err();
  EXPECT_THAT(err, HasSubstr("first failure: rank 1 (local rank 1 on "));
  EXPECT_THAT(err, HasSubstr("exited with code 7"));
  EXPECT_THAT(err, HasSubstr("| the reason"));
  EXPECT_THAT(err, HasSubstr("was killed by SIGTERM when ddprun stopped it"));
}

TEST_F(LauncherTest, ASignalsNumberIsAddedTo128) {
  auto job = start_shell({"--nproc-per-node=2"}, "[ $RANK = 1 ] && kill -9 $$; exec sleep 1000");
  EXPECT_EQ(job->wait(), 137);
  EXPECT_THAT(job->err(), HasSubstr("was killed by SIGKILL"));
}

TEST_F(LauncherTest, RestartsEveryWorkerUntilTheBudgetIsUsedUp) {
  auto job = start_shell(
      {"--nproc-per-node=2", "--max-restarts=2"},
      "echo gen $DDPRUN_GENERATION restart $TORCHELASTIC_RESTART_COUNT port $MASTER_PORT; "
      "[ $RANK = 1 ] && exit 3; exec sleep 1000");
  ASSERT_EQ(job->wait(), 3);
  std::set<std::string> ports;
  for (const std::string& line : lines_of(job->out())) ports.insert(line.substr(line.rfind(' ')));
  EXPECT_EQ(ports.size(), 3u) << "every generation has a store of its own";
  EXPECT_THAT(job->out(), HasSubstr("[rank 1] gen 2 restart 2"));
  EXPECT_THAT(job->err(), HasSubstr("failed after 2 of 2 restarts"));
}

TEST_F(LauncherTest, AFinalErrorOfAWorkerUsesNoRestart) {
  auto job = start_shell({"--nproc-per-node=2", "--max-restarts=3"},
                         "[ $RANK = 1 ] && exec sleep 1000; echo gen $DDPRUN_GENERATION; "
                         "echo 'run1: " +
                             std::string(kFinalError) + ": give it up' >&2; exit 4");
  EXPECT_EQ(job->wait(), 4);
  EXPECT_THAT(job->out(), Not(HasSubstr("gen 1")));
  EXPECT_THAT(job->err(), HasSubstr("not restarted: its error says that a restart would fail"));
}

TEST_F(LauncherTest, ASubmissionHasOneNameInAllGenerations) {
  std::vector<std::set<std::string>> names;
  for (int submission = 0; submission < 2; ++submission) {
    auto job = start_shell({"--nproc-per-node=2", "--max-restarts=1", "--rdzv-id=same"},
                           "echo $DDPRUN_SUBMISSION; exit $((1 - DDPRUN_GENERATION))");
    ASSERT_EQ(job->wait(), 0) << job->err();
    std::set<std::string>& its = names.emplace_back();
    for (const std::string& line : lines_of(job->out())) its.insert(line.substr(line.rfind(' ')));
    ASSERT_EQ(its.size(), 1u) << job->out();
    EXPECT_GT(its.begin()->size(), 8u);
  }
  EXPECT_NE(names[0], names[1]);
}

TEST_F(LauncherTest, AJobThatRecoversEndsWell) {
  auto job = start_shell({"--nproc-per-node=2", "--max-restarts=3"},
                         "[ $DDPRUN_GENERATION = 0 ] && [ $RANK = 1 ] && kill -9 $$; "
                         "[ $DDPRUN_GENERATION = 0 ] && exec sleep 1000; exit 0");
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("restart 1 of 3: rank 1"));
}

TEST_F(LauncherTest, KillsFromOutsideAtAnyTimeAreSurvivedAndNoGenerationOverlapsTheNext) {
  // Each pause after a quick failure is twice as long as the one before, so there are few
  // failures. Each worker leaves a file while it lives. A later generation must find no file
  // of an earlier one.
  auto job =
      start_shell({"--nproc-per-node=3", "--max-restarts=6"},
                  "for f in alive.*; do case $f in alive.$DDPRUN_GENERATION.*|'alive.*') ;; *) "
                  "kill -0 $(cat $f) 2>/dev/null && echo OVERLAP $f;; esac; done; "
                  "echo $$ > alive.$DDPRUN_GENERATION.$RANK; "
                  "[ $DDPRUN_GENERATION = 6 ] && exit 0; echo started; exec sleep 1000");
  const std::uint64_t seed = test_seed(1);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  for (int generation = 0; generation < 6; ++generation) {
    const std::string file =
        directory_ / ("alive." + std::to_string(generation) + "." + std::to_string(rng.below(3)));
    ASSERT_TRUE(eventually([&] { return !read_file(file).empty(); })) << job->err();
    kill(std::stoi(read_file(file)), rng.chance(0.5) ? SIGKILL : SIGSEGV);
  }
  ASSERT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->out(), Not(HasSubstr("OVERLAP")));
}

TEST_F(LauncherTest, AWorkerThatIgnoresSigtermIsKilledAfterTheGraceAndItsDetachedChildrenToo) {
  auto job = start_shell(
      {"--nproc-per-node=2", "--shutdown-grace=0.3"},
      "if [ $RANK = 1 ]; then while [ ! -e ready ]; do sleep 0.01; done; exit 5; fi; "
      "trap '' TERM; setsid sh -c \"trap '' TERM HUP; (setsid sleep 1000 &) ; touch ready; "
      "sleep 1000\" & wait; wait; while :; do sleep 1; done");
  EXPECT_EQ(job->wait(), 5);
  EXPECT_THAT(job->err(), HasSubstr("did not end within 300 ms: SIGKILL"));
}

TEST_F(LauncherTest, WhatWellEndedWorkersLeaveRunningIsEndedToo) {
  auto job = start_shell({"--nproc-per-node=2"}, "setsid sleep 1000 > /dev/null 2>&1 & exit 0");
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_TRUE(left_behind().empty());
}

TEST_F(LauncherTest, AnErrorFileOfAWorkerIsPartOfTheReport) {
  auto job = start_shell({},
                         "echo '{\"message\": {\"message\": \"ValueError: boom\"}}' > "
                         "$TORCHELASTIC_ERROR_FILE; exit 1");
  EXPECT_EQ(job->wait(), 1);
  EXPECT_THAT(job->err(), HasSubstr("its message: ValueError: boom"));
}

TEST_F(LauncherTest, AWorkerThatCannotBeExecutedIsNotRestarted) {
  std::ofstream(directory_ / "broken") << "no program at all";
  std::filesystem::permissions(directory_ / "broken", std::filesystem::perms::owner_all);
  auto job = start({"--nproc-per-node=2", "--max-restarts=3", "./broken"});
  EXPECT_EQ(job->wait(), 64);
  EXPECT_THAT(job->err(), HasSubstr("./broken: Exec format error"));
  EXPECT_THAT(job->err(), Not(HasSubstr("restart 1")));
}

// --- bad input

TEST_F(LauncherTest, TheConsoleGetsTheRanksItIsToShowAndTheReportTheWordsOfOthers) {
  auto job = start_shell({"--nproc-per-node=2", "--local-ranks-filter=1"},
                         "echo out$RANK; echo err$RANK >&2; "
                         "[ $RANK = 0 ] || { : >go; exec sleep 1000; }; " +
                             std::string(kUntilGo) + "; exit 3");
  EXPECT_EQ(job->wait(), 3);
  EXPECT_EQ(job->out(), "[rank 1] out1\n");
  EXPECT_THAT(job->err(), HasSubstr("[rank 1] err1\n"));
  EXPECT_THAT(job->err(), Not(HasSubstr("[rank 0] err0")));
  EXPECT_THAT(job->err(), HasSubstr("err0")) << "in the report";
}

TEST_F(LauncherTest, WithVirtualLocalRanksEachWorkerSeesADeviceOfItsOwn) {
  auto job = start_shell({"--nproc-per-node=2", "--virtual-local-rank"},
                         "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES",
                         {{"CUDA_VISIBLE_DEVICES", "5,GPU-6"}});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->out(), HasSubstr("[rank 0] 0 0 5\n"));
  EXPECT_THAT(job->out(), HasSubstr("[rank 1] 1 0 GPU-6\n"));
}

TEST_F(LauncherTest, WhatDoesNothingHereIsSaidInOneLine) {
  auto job = start(Arguments{"--standalone", "--rdzv-conf=close_timeout=3", "true"});
  EXPECT_EQ(job->wait(), 0);
  EXPECT_THAT(job->err(),
              HasSubstr("--rdzv-conf close_timeout has no effect: the verdict ends a job"));
  EXPECT_EQ(lines_of(job->err()).size(), 1u) << job->err();
}

TEST_F(LauncherTest, UnknownKeysOfRdzvConfAreIgnoredWithOneWarning) {
  auto job =
      start(Arguments{"--standalone", "--rdzv-conf=use_agent_store=1,joint_timeout=5", "true"});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(),
              HasSubstr("unknown keys are ignored, as with torchrun: 'joint_timeout' (did you "
                        "mean join_timeout?), 'use_agent_store'\n"));
  EXPECT_EQ(lines_of(job->err()).size(), 1u) << job->err();
}

TEST_F(LauncherTest, OptionsOfTorchrunThatDoNoHarmSayNothing) {
  auto job = start(Arguments{"--monitor-interval=0.1", "--start-method=fork",
                             "--signals-to-handle=SIGTERM,SIGINT", "--event-log-handler=null",
                             "--logs-specs=default", "true"});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(job->err(), "");
}

TEST_F(LauncherTest, ATemplateGivenAsOptionIsThePrefixOfTee) {
  auto job =
      start_shell({"--nproc-per-node=1", "-t1", "--role=trainer",
                   "--log-line-prefix-template=<${role_name} ${rank} ${local_rank} ${hostname}> "},
                  "echo line", {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "no "}});
  EXPECT_EQ(job->wait(), 0) << job->err();
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
  EXPECT_THAT(job->out(), HasSubstr("<trainer 0 0 " + std::string(host) + "> line\n"));
}

// Workers that ignore SIGTERM are killed after this time. The default is longer than the test
// waits.
TEST_F(LauncherTest, TorchrunsShutdownTimeoutIsTheTimeUntilSigkill) {
  for (const auto& [options, variables] :
       {std::pair<Arguments, Variables>{{"--shutdown-timeout=0.2"}, {}},
        {{}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "0.2"}}}}) {
    auto job = start_shell(options, "trap '' TERM; echo up; exec sleep 60", variables);
    ASSERT_TRUE(job->wait_for_out("up")) << job->err();
    job->signal(SIGTERM);
    job->wait(std::chrono::seconds(8));
    EXPECT_THAT(job->err(), HasSubstr("did not end within 200 ms: SIGKILL"));
  }
}

TEST_F(LauncherTest, OutputOfRanksThatDoNotRunHereIsNoSilentWish) {
  const std::string words = " names no worker of this node: its local ranks are 0 to 0\n";
  for (const std::string option : {"--local-ranks-filter=7", "--tee=1:3", "--redirects=2:1,1:1"}) {
    auto job = start({option, "true"});
    EXPECT_EQ(job->wait(), 0);
    EXPECT_THAT(job->err(),
                HasSubstr("ddprun: warning: " + option.substr(0, option.find('=')) + words));
  }
  auto job = start({"--local-ranks-filter=0,7", "true"});
  EXPECT_EQ(job->wait(), 0);
  EXPECT_THAT(job->err(), Not(HasSubstr(words))) << "another node may have eight";
}

struct BadInput {
  Arguments arguments;
  int code;
  std::string named;
};

TEST_F(LauncherTest, BadInputGetsOneLineThatNamesItAndADocumentedCode) {
  std::ofstream(directory_ / "data.txt") << "x";
  std::filesystem::create_directory(directory_ / "folder");
  std::filesystem::create_directory(directory_ / "folder.py");
  std::ofstream(directory_ / "tool") << "#!/bin/sh\n";
  std::filesystem::create_directories(directory_ / "build/release/bin");
  std::filesystem::copy_file(program("ddprun"), directory_ / "build/release/bin/train");
  std::ofstream(directory_ / "script") << "#!/no/such/interpreter -x\n";
  std::filesystem::permissions(directory_ / "script", std::filesystem::perms::owner_all);
  std::filesystem::permissions(directory_ / "tool", std::filesystem::perms::owner_all);
  const std::vector<BadInput> cases{
      {{"--nonsense", "true"}, 2, "--nonsense"},
      {{"--nnodes=3:2", "true"}, 2, "did you mean 2:3"},
      {{"--nproc-per-node=gpu", "true"}, 2, "no GPU is visible here"},
      {{"--nproc-per-node=x", "true"}, 2, "--nproc-per-node"},
      {{"./missing"}, 2, "./missing: no such file"},
      {{"./train"}, 2, "exec ./train: no such file; did you mean build/release/bin/train?"},
      {{"train"}, 2, "no such program in PATH; did you mean build/release/bin/train?"},
      {{"./script"}, 2, "names the interpreter /no/such/interpreter, which does not exist"},
      {{"--chdir=nowhere", "true"}, 2, "--chdir: invalid value 'nowhere' (no such directory)"},
      {{"--chdir=folder", "./tool"}, 2, "exec ./tool: no such file"},
      {{"--umask=9", "true"}, 2, "--umask: invalid value '9' (expected an octal number"},
      {{"--env=A", "true"}, 2, "--env: invalid value 'A' (expected NAME=VALUE, or"},
      {{"--env=RANK=0", "true"}, 2, "--env: RANK cannot be set"},
      {{"no-such-program"}, 2, "no-such-program: no such program in PATH"},
      {{"tool"}, 2, "did you mean ./tool?"},
      {{"./data.txt"}, 2, "./data.txt: not executable"},
      {{"./folder"}, 2, "./folder: it is a directory; give the path of a file"},
      {{"missing.py"}, 2, "missing.py: no such file"},
      {{"data.txt/train.py"}, 2, "data.txt/train.py: Not a directory"},
      {{"folder.py"}, 2, "folder.py: it is a directory; give the path of a file"},
      {{"--standalone=maybe", "true"}, 2, "--standalone: invalid value 'maybe'"},
      {{"--nnodes=2", "true"}, 2, "--rdzv-endpoint"},
      {{"--nnodes=2", "--rdzv-endpoint=no-such-host.invalid:29400", "true"},
       69,
       "no-such-host.invalid"},
      {{"--nnodes=2", "--rdzv-endpoint=127.0.0.1:x", "true"}, 2, "--rdzv-endpoint"},
      {{"--nnodes=2", "--master-addr=198.51.100.1", "true"}, 69, "not an address of this host"},
      {{"--log-dir=/proc/nowhere", "true"}, 73, "--log-dir"},
      {{"--no-python", "-m", "x"}, 2, "--no-python"},
      {{"--heartbeat-interval=2", "--lease=5", "true"},
       2,
       "invalid value '2' (with --lease=5 expected seconds from 0.1 to 1.25)"},
      {{}, 2, "the program is missing"},
  };
  for (const BadInput& bad : cases) {
    auto job = start(bad.arguments);
    // The machine's resolver may take long for a name that does not exist.
    EXPECT_EQ(job->wait(seconds(40)), bad.code) << bad.named << "\n" << job->err();
    EXPECT_EQ(job->out(), "");
    EXPECT_EQ(lines_of(job->err()).size(), 1u) << job->err();
    EXPECT_THAT(job->err(), HasSubstr(bad.named));
  }
}

TEST_F(LauncherTest, APlaceForTemporaryFilesThatIsNotThereIsNoUsageError) {
  auto job = start({"true"}, {{"TMPDIR", directory_ / "nowhere"}});
  EXPECT_EQ(job->wait(), 73);
  EXPECT_THAT(job->err(), HasSubstr("nowhere (TMPDIR): No such file"));
  EXPECT_EQ(lines_of(job->err()).size(), 1u) << job->err();
}

TEST_F(LauncherTest, AnEndpointTakenBySomethingElseIsNamed) {
  ChildProcess store({program("ddp-store"), "--listen", "127.0.0.1:0"}, environment());
  auto job = start({"--rdzv-endpoint=" + listening_address(store), "true"});
  EXPECT_EQ(job->wait(), 69) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("not a rendezvous service"));
  store.signal(SIGTERM);
  store.wait();
}

// A port that is bound but has no listener. listen_tcp() does not share it.
class LauncherAndATakenPort : public LauncherTest {
 protected:
  LauncherAndATakenPort() : taken_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto any = numeric_address({"127.0.0.1", 0});
    EXPECT_EQ(bind(taken_.get(), any->get(), any->size), 0);
    endpoint_ = "--rdzv-endpoint=" + to_text(local_address_of(taken_.get()));
  }
  UniqueFd taken_;
  std::string endpoint_;
};

TEST_F(LauncherAndATakenPort, WhereNobodyAnswersIsNamedAtOnce) {
  auto job = start({endpoint_, "true"});
  EXPECT_EQ(job->wait(seconds(20)), 69) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("is taken by a program that is not a rendezvous service"));
}

// For example, an agent of an earlier job had the port.
TEST_F(LauncherAndATakenPort, ThatIsGivenBackSoonIsTaken) {
  auto job = start({"--verbose", endpoint_, "true"});
  ASSERT_TRUE(job->wait_for_err("refuses connections; trying again")) << job->err();
  taken_.reset();
  EXPECT_EQ(job->wait(), 0) << job->err();
}

// The other program accepts a connection. It is gone before it has left enough connections
// unanswered for ddprun to name it.
TEST_F(LauncherAndATakenPort, ThatIsGivenBackAfterAConnectionIsTaken) {
  ASSERT_EQ(listen(taken_.get(), 1), 0);
  auto job = start({endpoint_, "true"});
  pollfd called{.fd = taken_.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&called, 1, 20'000), 1) << job->err();
  taken_.reset();
  EXPECT_EQ(job->wait(seconds(20)), 0) << job->err();
}

TEST_F(LauncherTest, HelpAndVersionGoToStandardOutput) {
  auto help = start({"--help"});
  EXPECT_EQ(help->wait(), 0);
  EXPECT_THAT(help->out(), HasSubstr("Usage: ddprun"));
  auto version = start({"--version"});
  EXPECT_EQ(version->wait(), 0);
  EXPECT_EQ(version->out().substr(0, 7), "ddprun ");
}

}  // namespace
}  // namespace ddprun::testing_support
