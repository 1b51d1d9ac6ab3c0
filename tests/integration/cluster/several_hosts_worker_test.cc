// Tests workers of worker_lib on several hosts: the failures that the engine itself notices,
// and training under ddprun. The training ends with the same bits after a killed worker, a
// killed node and a cut cable.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <sstream>

#include "tests/integration/cluster/several_hosts.h"
#include "tests/support/read_file.h"
#include "tests/support/worker_failure.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing_support::Arguments;
using testing_support::ChildProcess;
using testing_support::failure_in;
using testing_support::first_line_of;
using testing_support::NetnsCluster;
using testing_support::program;
using testing_support::SeveralHosts;
using testing_support::WorkerFailure;

// Two ranks on each of two nodes, started by hand. No agent watches them. Rank 0 hosts the
// store. The environment does not say which ranks share a node.
class RanksWithoutAgents : public SeveralHosts {
 protected:
  void start_ranks(const std::string& play, const std::string& init_method = "env://",
                   const std::string& master = NetnsCluster::address(0)) {
    start_hosts(2, false);
    start_ranks_at(play, init_method, master);
  }

  void start_ranks_at(const std::string& play, const std::string& init_method,
                      const std::string& master) {
    for (int rank = 0; rank < 4; ++rank) {
      ChildProcess::Options environment;
      environment.variables = {{"RANK", std::to_string(rank)},  // the test finds the process by it
                               {"MASTER_ADDR", master},
                               {"DDPRUN_PORT_RANGE", "20000-20009"},
                               {"OMP_NUM_THREADS", "1"}};
      ranks_.push_back(start_process(rank / 2,
                                     {program("worker_test_rank"), play,
                                      init_method + "?world_size=4&rank=" + std::to_string(rank)},
                                     environment));
    }
    const std::string begun = play == "sum" ? "ready\n" : "ready\n.\n.\n";
    for (auto& rank : ranks_) ASSERT_TRUE(rank->wait_for_out(begun)) << rank->out() << rank->err();
  }

  void expect_sum() {
    for (auto& rank : ranks_) {
      EXPECT_EQ(rank->wait(), 0) << rank->out() << rank->err();
      EXPECT_THAT(rank->out(), HasSubstr("sum 6"));
    }
  }

  // Waits for the rank's end. Returns the failure that it reports.
  WorkerFailure expect_lost(int rank, const std::vector<int>& peers, const std::string& words) {
    EXPECT_EQ(ranks_[rank]->wait(), testing_support::kFailedAsExpected) << ranks_[rank]->err();
    const WorkerFailure failure = failure_in(ranks_[rank]->out());
    EXPECT_EQ(failure.kind, DistError::Kind::kPeerLost) << failure.what;
    EXPECT_THAT(failure.peer, testing::AnyOfArray(peers)) << failure.what;
    EXPECT_THAT(failure.what, HasSubstr(words));
    return failure;
  }

  void TearDown() override {
    ranks_.clear();
    SeveralHosts::TearDown();
  }

  std::vector<std::unique_ptr<ChildProcess>> ranks_;
};

TEST_F(RanksWithoutAgents, ListenWithinThePortRangeOnly) {
  start_ranks("small");
  ASSERT_FALSE(HasFatalFailure());
  for (int node = 0; node < 2; ++node) {
    const auto sockets = cluster_->start(node, {"ss", "-Hltn"});
    ASSERT_EQ(sockets->wait(), 0) << sockets->err();
    std::istringstream lines(sockets->out());
    int listeners = 0;
    for (std::string state, receive, send, local, rest;
         lines >> state >> receive >> send >> local;) {
      std::getline(lines, rest);
      const int port = std::stoi(local.substr(local.rfind(':') + 1));
      if (port == 29500) continue;  // the store's port
      EXPECT_TRUE(port >= 20000 && port <= 20009) << local;
      ++listeners;
    }
    EXPECT_EQ(listeners, 2) << sockets->out();
  }
}

// A node's own name resolves to its loopback address, as on Debian. The other ranks must get
// another address.
TEST_F(RanksWithoutAgents, MeetByTheNameOfRank0sHost) {
  start_ranks("sum", "env://", NetnsCluster::name(0));
  ASSERT_FALSE(HasFatalFailure());
  expect_sum();
}

TEST_F(RanksWithoutAgents, MeetAtAFile) {
  start_ranks("sum", "file://" + scratch_ / "init");
  ASSERT_FALSE(HasFatalFailure());
  expect_sum();
}

TEST_F(RanksWithoutAgents, UseADdpStoreOnAnotherHost) {
  start_hosts(2, false);
  const auto store = start_process(1, {program("ddp-store"), "--listen", "*:29500"});
  ASSERT_TRUE(store->wait_for_out("29500")) << store->err();
  start_ranks_at("sum", "env://", NetnsCluster::address(1));
  ASSERT_FALSE(HasFatalFailure());
  expect_sum();
}

TEST_F(RanksWithoutAgents, ACutCableIsNoticedByAllWithinTheLease) {
  start_ranks("small");
  ASSERT_FALSE(HasFatalFailure());
  const TimePoint cut = BootClock::now();
  cluster_->cut(1);
  for (int rank = 0; rank < 4; ++rank)
    expect_lost(rank, rank < 2 ? std::vector{2, 3} : std::vector{0, 1},
                "out of reach (its node has not answered for 5.0 s)");
  EXPECT_LT(BootClock::now() - cut, seconds(8));
}

TEST_F(RanksWithoutAgents, AKilledOneIsNamedOnEveryHostWithinASecond) {
  start_ranks("large");
  ASSERT_FALSE(HasFatalFailure());
  // Finds the process by its rank, from outside the host. A process that first enters the host,
  // and forks in any order, would take time that the test measures.
  std::vector<pid_t> rank3 = testing_support::processes_with("RANK", "3");
  std::erase_if(rank3, [](pid_t pid) {
    return first_line_of("/proc/" + std::to_string(pid) + "/comm") !=
           "worker_test_ran";  // the kernel keeps 15 letters
  });
  ASSERT_EQ(rank3.size(), 1u);
  const TimePoint killed = BootClock::now();
  kill(rank3[0], SIGKILL);
  for (int rank = 0; rank < 3; ++rank) {
    const WorkerFailure failure = expect_lost(rank, {3}, "rank 3 died");
    EXPECT_LT(failure.time - killed, seconds(1)) << "rank " << rank;
  }
}

TEST_F(RanksWithoutAgents, AShortOutageIsNotNoticed) {
  start_ranks("small");
  ASSERT_FALSE(HasFatalFailure());
  cluster_->cut(1);
  testing_support::let_pass(seconds(2));
  cluster_->heal(1);
  const std::size_t steps = ranks_[0]->out().size();
  EXPECT_TRUE(testing_support::eventually([&] { return ranks_[0]->out().size() > steps + 20; }))
      << ranks_[0]->out().substr(steps > 200 ? steps - 200 : 0);
}

// Training of two nodes with two workers each. The service has its own host.
class Training : public SeveralHosts {
 protected:
  void SetUp() override {
    SeveralHosts::SetUp();
    if (!IsSkipped()) start_hosts(2, true);
  }

  std::string train(int node, const std::string& name) {
    start_node(
        node, {"--nnodes=2", "--nproc-per-node=2", "--max-restarts=3"},
        Arguments{program("train_digits"),
                  "--data=" + std::string(DDPRUN_SOURCE_DIR) + "/examples/data/digits",
                  "--epochs=8", "--checkpoint-every=5", "--checkpoint-dir=" + scratch_ / name,
                  "--digest-file=" + digest_file(name)});
    return name;
  }
  void start(const std::string& name) {
    for (int node = 0; node < 2; ++node) train(node, name);
  }
  void expect_end(const std::string& name) {
    for (int node = 0; node < 2; ++node)
      EXPECT_EQ(jobs_[node]->wait(seconds(60)), 0) << name << ", node " << node << ":\n"
                                                   << jobs_[node]->out() << jobs_[node]->err();
  }
  std::string digest_file(const std::string& name) const { return scratch_ / (name + ".sha256"); }
  std::string digest(const std::string& name) const { return first_line_of(digest_file(name)); }
  void await_epoch(int epoch) {
    ASSERT_TRUE(jobs_[0]->wait_for_out("epoch  " + std::to_string(epoch) + "  loss"))
        << jobs_[0]->out() << jobs_[0]->err();
  }
  void expect_resumed() {
    EXPECT_THAT(jobs_[0]->out(), testing::ContainsRegex("resumed at step [1-9]"));
  }
};

TEST_F(Training, EndsWithTheSameBitsAfterAKilledWorkerAKilledNodeAndACutCable) {
  start("undisturbed");
  expect_end("undisturbed");
  ASSERT_EQ(digest("undisturbed").size(), 64u);

  start("killed worker");
  await_epoch(3);
  kill_one(1, "train_digits");
  expect_end("killed worker");
  EXPECT_THAT(jobs_[1]->err(), HasSubstr("was killed by SIGKILL"));
  expect_resumed();
  EXPECT_EQ(digest("killed worker"), digest("undisturbed"));

  start("killed node");
  await_epoch(3);
  cluster_->crash(1);
  jobs_.erase(1);
  cluster_->boot(1);
  train(1, "killed node");
  expect_end("killed node");
  expect_resumed();
  EXPECT_EQ(digest("killed node"), digest("undisturbed"));

  start("cut cable");
  await_epoch(3);
  cluster_->cut(1);
  // The workers may notice before the service's lease ends, which is as long as their timeout.
  // Their failures do not count: the node is blamed, and one restart is used.
  ASSERT_TRUE(jobs_[0]->wait_for_err("waiting: 1 of 2 nodes here: node0; missing: node1"))
      << jobs_[0]->err();
  cluster_->heal(1);
  expect_end("cut cable");
  expect_resumed();
  EXPECT_EQ(digest("cut cable"), digest("undisturbed"));
  EXPECT_THAT(jobs_[0]->err(), HasSubstr("(restart 1 of 3: node 1 (node1) was lost: "));
  EXPECT_THAT(jobs_[0]->err(), HasSubstr("succeeded after 1 of 3 restarts"));
}

}  // namespace
}  // namespace ddprun
