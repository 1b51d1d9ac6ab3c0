// Tests `ddprun logs`: the real binary, on running jobs.

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/exit_codes.h"
#include "tests/integration/launcher/control_jobs_frame.h"

namespace ddprun::testing_support {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

TEST_F(ControlTest, LogsTellsTheLastLinesOfARank) {
  auto job = launch_shell({"--nproc-per-node=2"},
                          until_go_after("for i in 1 2 3; do echo rank $RANK line $i; done; "
                                         "echo rank $RANK bad >&2"));
  ASSERT_TRUE(job->wait_for_err("rank 0 bad") && job->wait_for_err("rank 1 bad"));
  ASSERT_TRUE(job->wait_for_out("rank 0 line 3") && job->wait_for_out("rank 1 line 3"));
  const CommandResult logs = run_ddprun({"logs", "-n", "2", "--rank", "1"});
  EXPECT_EQ(logs.code, 0) << logs.err;
  EXPECT_EQ(logs.out, "rank 1 line 2\nrank 1 line 3\n");
  EXPECT_EQ(logs.err, "rank 1 bad\n");
  EXPECT_THAT(run_ddprun({"logs"}).out, HasSubstr("[rank 0] rank 0 line 1\n"));
  const CommandResult lines = run_ddprun({"logs", "--rank=0", "-n1", "--json"});
  EXPECT_EQ(lines.code, 2) << "-n1 is no option: " << lines.out;
  const CommandResult as_json = run_ddprun({"logs", "--rank=0", "--lines=1", "--json"});
  EXPECT_THAT(as_json.out, HasSubstr(R"({"line":"rank 0 line 3","rank":0,"stream":"stdout"})"));
  EXPECT_THAT(run_ddprun({"logs", "--rank=5"}).err, HasSubstr("rank 5 does not run on this node"));
  let_go();
  EXPECT_EQ(job->wait(), 0);
}

TEST_F(ControlTest, LogsFollowsARankAcrossGenerationsUntilTheJobEnds) {
  auto job = launch_shell({"--nproc-per-node=2", "--rdzv-id=train"},
                          until_go_after("echo rank $RANK port $MASTER_PORT up"));
  ASSERT_TRUE(job->wait_for_out("rank 1 port"));
  ASSERT_TRUE(job->wait_for_out("rank 0 port"));
  auto follower = launch({"logs", "-f", "--rank", "1"});
  ASSERT_TRUE(follower->wait_for_out(" up"));
  ASSERT_EQ(run_ddprun({"restart"}).code, 0);
  ASSERT_TRUE(follower->wait_for_err("generation 1 begins")) << follower->err();
  ASSERT_TRUE(eventually([&] { return lines_of(follower->out()).size() == 2; })) << follower->out();
  EXPECT_THAT(follower->out(), Not(HasSubstr("rank 0")));
  let_go();
  EXPECT_EQ(job->wait(), 0);
  EXPECT_EQ(follower->wait(), 0);
  EXPECT_THAT(follower->err(), HasSubstr("ended with exit code 0"));
}

TEST_F(ControlTest, LogsTellsWhatGoesIntoFilesAloneToo) {
  auto job = launch_shell({"-r", "3", "--log-dir=logs"},
                          until_go_after("echo first; echo second; touch up") + "; echo last");
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(directory_ / "up"); }));
  EXPECT_EQ(run_ddprun({"logs", "-n", "1"}).out, "second\n");
  auto follower = launch({"logs", "-f"});
  ASSERT_TRUE(follower->wait_for_out("second"));
  let_go();
  EXPECT_EQ(job->wait(), 0);
  EXPECT_EQ(follower->wait(), 0);
  EXPECT_EQ(follower->out(), "first\nsecond\nlast\n");
}

TEST_F(ControlTest, ASlowReaderLosesLinesAndNeverStallsTheWorkers) {
  auto job = launch_shell({"--local-ranks-filter=7", "--rdzv-id=flood"},
                          until_go_after("echo") +
                              "; head -c 16000000 /dev/zero | tr '\\0' 'x' | "
                              "fold -w 99; echo done > flooded");
  const UniqueFd slow = connected();
  const std::string request = R"({"version":1,"what":"logs","follow":true})"
                              "\n";
  ASSERT_EQ(send(slow.get(), request.data(), request.size(), 0),
            static_cast<ssize_t>(request.size()));
  // The reader is admitted once it has received its first answer.
  pollfd readable{slow.get(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, 10'000), 1);
  let_go();
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_TRUE(std::filesystem::exists(directory_ / "flooded"));
  std::string all;
  char buffer[65536];
  ssize_t size = 0;
  while ((size = recv(slow.get(), buffer, sizeof buffer, 0)) > 0) {
    all.append(buffer, static_cast<std::size_t>(size));
  }
  EXPECT_LT(all.size(), 12'000'000u);
}

// --- logs, through the service ---

class LogsByServiceTest : public ControlByServiceTest {
 protected:
  // Starts two nodes with one rank each.
  void begin_nodes(const std::string& script) {
    for (std::unique_ptr<ChildProcess>* node : {&one_, &two_}) {
      *node = launch(
          {"--rdzv-endpoint=" + endpoint_, "--rdzv-id=train", "--nnodes=2", "sh", "-c", script});
    }
  }
  void begin_until_go(const std::string& script) {
    begin_nodes(until_go_after(script + "; echo rank $RANK is up"));
    ASSERT_TRUE(one_->wait_for_out("is up") && two_->wait_for_out("is up")) << one_->err();
  }
  // Returns the node of this rank.
  ChildProcess& node_of(int rank) const {
    const std::string words = "rank " + std::to_string(rank) + " is up";
    return one_->out().find(words) != std::string::npos ? *one_ : *two_;
  }
  std::unique_ptr<ChildProcess> follow(const Arguments& options = {}) const {
    return launch(joined({"logs", "-f", "--rdzv-endpoint=" + endpoint_}, options, {"train"}));
  }
  void end_nodes() {
    let_go();
    EXPECT_EQ(one_->wait(), 0) << one_->err();
    EXPECT_EQ(two_->wait(), 0) << two_->err();
  }
  // Returns the peak memory of a process, in KiB.
  static long peak_kib(pid_t pid) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) return std::stol(line.substr(6));
    }
    return -1;
  }

  std::unique_ptr<ChildProcess> one_;
  std::unique_ptr<ChildProcess> two_;
};

TEST_F(LogsByServiceTest, TellsTheLastLinesOfAllNodesOrOfARank) {
  start_service();
  begin_until_go("for i in 1 2 3; do echo rank $RANK line $i; done; echo rank $RANK bad >&2");
  const CommandResult all = ask({"logs", "-n", "2", "train"});
  EXPECT_EQ(all.code, 0) << all.err;
  for (const std::string rank : {"0", "1"}) {
    EXPECT_THAT(all.out, HasSubstr("[rank " + rank + "] rank " + rank + " line 3\n[rank " + rank +
                                   "] rank " + rank + " is up\n"));
    EXPECT_THAT(all.err, HasSubstr("[rank " + rank + "] rank " + rank + " bad\n"));
  }
  EXPECT_THAT(all.out, Not(HasSubstr("line 2")));
  const CommandResult one = ask({"logs", "-n", "1", "--rank=1", "train"});
  EXPECT_EQ(one.out, "rank 1 is up\n");
  EXPECT_EQ(one.err, "rank 1 bad\n");
  const CommandResult as_json = ask({"logs", "--rank=0", "--lines=1", "--json", "train"});
  EXPECT_EQ(as_json.out,
            "{\"line\":\"rank 0 is up\",\"rank\":0,\"stream\":\"stdout\"}\n"
            "{\"line\":\"rank 0 bad\",\"rank\":0,\"stream\":\"stderr\"}\n");
  const CommandResult no_rank = ask({"logs", "--rank=2", "train"});
  EXPECT_EQ(no_rank.code, to_int(ExitCode::kNoJob));
  EXPECT_THAT(no_rank.err, HasSubstr("--rank: invalid value '2' (expected 0 to 1)"));
  const CommandResult no_job = ask({"logs", "-f", "other"});
  EXPECT_EQ(no_job.code, to_int(ExitCode::kNoJob));
  EXPECT_THAT(no_job.err, HasSubstr("this service has no job 'other'"));
  end_nodes();
  EXPECT_THAT(ask({"logs", "train"}).err, HasSubstr("job 'train' has ended"));
}

TEST_F(LogsByServiceTest, FollowsAcrossGenerationsUntilTheJobEnds) {
  start_service();
  begin_nodes(until_go_after("echo rank $RANK is up") + "; echo rank $RANK said last");
  ASSERT_TRUE(one_->wait_for_out("is up") && two_->wait_for_out("is up")) << one_->err();
  auto all = follow();
  auto one = follow({"--rank=1", "--json"});
  ASSERT_TRUE(all->wait_for_out("rank 0 is up") && all->wait_for_out("rank 1 is up"));
  ASSERT_TRUE(one->wait_for_out("rank 1 is up"));
  ASSERT_EQ(ask({"restart", "train"}).code, 0);
  ASSERT_TRUE(all->wait_for_err("generation 1 begins")) << all->err();
  ASSERT_TRUE(eventually([&] { return lines_of(all->out()).size() == 4; })) << all->out();
  ASSERT_TRUE(eventually([&] { return lines_of(one->out()).size() == 3; })) << one->out();
  end_nodes();
  EXPECT_EQ(all->wait(), 0) << all->err();
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_THAT(all->out(), HasSubstr("[rank 0] rank 0 said last\n"));
  EXPECT_THAT(all->out(), HasSubstr("[rank 1] rank 1 said last\n"));
  EXPECT_THAT(all->err(), HasSubstr("ddprun: the job has ended with exit code 0\n"));
  EXPECT_THAT(one->out(), Not(HasSubstr("rank 0")));
  EXPECT_EQ(json::parse(lines_of(one->out()).back())["exit_code"], 0) << one->out();
}

TEST_F(LogsByServiceTest, NamesANodeThatDoesNotAnswerAndShowsTheOthers) {
  start_service({"--lease=60"});
  begin_until_go("true");
  const pid_t agent = tree_of(node_of(1)).agent;
  ASSERT_EQ(kill(agent, SIGSTOP), 0);
  const CommandResult some = ask({"logs", "train"});
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_EQ(some.out, "[rank 0] rank 0 is up\n");
  EXPECT_THAT(some.err, HasSubstr("no answer within 3.0 s from "));
  const CommandResult none = ask({"logs", "--rank=1", "--json", "train"});
  EXPECT_EQ(none.code, to_int(ExitCode::kNoAnswer)) << none.out;
  EXPECT_THAT(none.out, HasSubstr("{\"notice\":\"no answer within 3.0 s from "));
  EXPECT_THAT(none.err, HasSubstr("no node of job 'train' has sent its output"));
  auto late = follow();
  EXPECT_TRUE(late->wait_for_err("no answer within 3.0 s")) << late->err();
  ASSERT_EQ(kill(agent, SIGCONT), 0);
  EXPECT_TRUE(late->wait_for_out("rank 1 is up")) << "it is back";
  end_nodes();
  EXPECT_EQ(late->wait(), 0) << late->err();
}

// More readers than may read at a time.
TEST_F(LogsByServiceTest, AReaderWhoIsKilledIsForgotten) {
  start_service();
  begin_until_go("true");
  for (int i = 0; i < 20; ++i) {
    auto reader = follow();
    ASSERT_TRUE(reader->wait_for_out("rank 0 is up") && reader->wait_for_out("rank 1 is up"))
        << i << ": " << reader->err();
    reader->signal(SIGKILL);
    reader->wait();
  }
  const CommandResult answer = ask({"logs", "-n", "1", "--rank=1", "train"});
  EXPECT_EQ(answer.out, "rank 1 is up\n") << answer.err;
  end_nodes();
}

TEST_F(LogsByServiceTest, AReaderWhoHasStoppedCostsLittleAndHoldsNobodyUp) {
  start_service();
  begin_nodes(until_go_after("echo rank $RANK is up") +
              "; head -c 24000000 /dev/zero | tr '\\0' 'x' | fold -w 99; "
              "echo; echo rank $RANK said last");
  ASSERT_TRUE(one_->wait_for_out("is up") && two_->wait_for_out("is up")) << one_->err();
  auto reader = follow();
  ASSERT_TRUE(reader->wait_for_out("rank 0 is up") && reader->wait_for_out("rank 1 is up"));
  reader->signal(SIGSTOP);
  const long before = peak_kib(service_->pid());
  end_nodes();
  EXPECT_LT(peak_kib(service_->pid()) - before, 12 * 1024);
  reader->signal(SIGCONT);
  EXPECT_EQ(reader->wait(), 0);
  EXPECT_THAT(reader->err(), HasSubstr("bytes of output are missing here"));
  const std::vector<std::string> lines = lines_of(reader->out());
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "[rank 0] rank 0 said last"), 1);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "[rank 1] rank 1 said last"), 1);
  EXPECT_THAT(reader->err(), HasSubstr("ended with exit code 0"));
}

// More output than the service keeps, and less than the agents keep: no reader loses any, at
// any speed.
TEST_F(LogsByServiceTest, AReaderWhoReadsGetsAllOfIt) {
  start_service();
  begin_nodes("echo rank $RANK is up; until [ -e flood ]; do sleep 0.05; done; " +
              until_go_after("seq -f 'a line that is neither short nor long, number %.0f' 20000"));
  ASSERT_TRUE(one_->wait_for_out("is up") && two_->wait_for_out("is up")) << one_->err();
  auto reader = follow();
  ASSERT_TRUE(reader->wait_for_out("rank 0 is up") && reader->wait_for_out("rank 1 is up"));
  std::ofstream(directory_ / "flood") << "now";
  EXPECT_TRUE(eventually([&] {
    const std::string out = reader->out();
    return std::count(out.begin(), out.end(), '\n') == 40002;
  })) << lines_of(reader->out()).size();
  end_nodes();
  EXPECT_EQ(reader->wait(), 0) << reader->err();
  EXPECT_THAT(reader->err(), Not(HasSubstr("missing")));
}

TEST_F(LogsByServiceTest, SaysWhenTheServiceEndsFirst) {
  start_service();
  begin_until_go("true");
  auto reader = follow();
  ASSERT_TRUE(reader->wait_for_out("rank 0 is up"));
  end(*service_);
  EXPECT_EQ(reader->wait(), to_int(ExitCode::kNoAnswer));
  EXPECT_THAT(reader->err(), HasSubstr("the service is stopping")) << reader->err();
  service_.reset();
  one_->signal(SIGTERM);
  two_->signal(SIGTERM);
  one_->wait();
  two_->wait();
}

TEST_F(LogsByServiceTest, OfAServiceInsideAnAgentToo) {
  const HeldPort held;
  endpoint_ = held.endpoint();
  begin_nodes(until_go_after("echo rank $RANK is up") + "; echo rank $RANK said last");
  ASSERT_TRUE(one_->wait_for_out("is up") && two_->wait_for_out("is up")) << one_->err();
  auto reader = follow();
  ASSERT_TRUE(reader->wait_for_out("rank 0 is up") && reader->wait_for_out("rank 1 is up"));
  end_nodes();
  EXPECT_EQ(reader->wait(), 0) << reader->err();
  EXPECT_THAT(reader->out(), HasSubstr("[rank 0] rank 0 said last\n"));
  EXPECT_THAT(reader->out(), HasSubstr("[rank 1] rank 1 said last\n"));
}

TEST_F(LogsByServiceTest, OfAgentsWithoutASocketToo) {
  std::ofstream(sockets()) << "a file, where the directory would be";
  start_service();
  begin_until_go("true");
  EXPECT_THAT(ask({"logs", "--rank=1", "train"}).out, HasSubstr("rank 1 is up"));
  end_nodes();
  std::filesystem::remove(sockets());
}

}  // namespace
}  // namespace ddprun::testing_support
