// Tests two and three hosts in network namespaces: workers killed, nodes killed in turn, a
// cable cut. The workers here are shell scripts. Workers of worker_lib are in
// several_hosts_worker_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "base/rng.h"
#include "tests/integration/cluster/several_hosts.h"
#include "tests/support/test_seed.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::Not;

using std::chrono::seconds;
using testing_support::Arguments;
using testing_support::ChildProcess;
using testing_support::let_pass;
using testing_support::NetnsCluster;
using testing_support::program;
using testing_support::seed_text;
using testing_support::SeveralHosts;
using testing_support::test_seed;
using testing_support::up_to;

// Returns the script of a worker that prints its rank and store, and stays until a generation
// in which the job may end.
std::string stay_until(int generation) {
  return "echo gen $DDPRUN_GENERATION rank $RANK of $WORLD_SIZE store $MASTER_ADDR; [ "
         "$DDPRUN_GENERATION -ge " +
         std::to_string(generation) + " ] && exit 0; echo $$ > /dev/shm/worker; exec sleep 1000";
}

TEST_F(SeveralHosts, MeetAtAHostThatStartsTheServiceInAnyOrder) {
  start_hosts(2, false);
  ChildProcess& one =
      start_node(1, {"--nnodes=2"}, "sleep 0.2; echo rank $RANK store $MASTER_ADDR");
  ChildProcess& zero =
      start_node(0, {"--nnodes=2"}, "sleep 0.2; echo rank $RANK store $MASTER_ADDR");
  EXPECT_EQ(zero.wait(), 0) << zero.err();
  EXPECT_EQ(one.wait(), 0) << one.err();
  // Host names order the ranks. The store's address is one that other hosts reach.
  EXPECT_THAT(zero.out(), HasSubstr("rank 0 store " + NetnsCluster::address(0)));
  EXPECT_THAT(one.out(), HasSubstr("rank 1 store " + NetnsCluster::address(0)));
}

TEST_F(SeveralHosts, MeetInTorchrunsStaticModeAtTheNameOfTheFirst) {
  start_hosts(2, false);
  for (int node = 1; node >= 0; --node) {
    jobs_[node] = start_process(
        node, {program("ddprun"), "--nnodes=2", "--master-addr=" + NetnsCluster::name(0),
               "--node-rank=" + std::to_string(node), "sh", "-c", "echo store $MASTER_ADDR"});
  }
  for (int node = 0; node < 2; ++node) {
    EXPECT_EQ(jobs_[node]->wait(), 0) << jobs_[node]->err();
    EXPECT_EQ(jobs_[node]->out(),
              "[rank " + std::to_string(node) + "] store " + NetnsCluster::address(0) + "\n");
  }
}

TEST_F(SeveralHosts, ReachEachOtherByTheAddressThatWasAskedFor) {
  for (const std::string& asked :
       {NetnsCluster::address(0), std::string("10.77.1.0/24"), std::string("eth0")}) {
    start_hosts(2, true);
    start_node(0, {"--nnodes=2", "--node-rank=0", "--local-addr=" + asked}, "echo $MASTER_ADDR");
    start_node(1, {"--nnodes=2", "--node-rank=1"}, "echo $MASTER_ADDR");
    for (int node = 0; node < 2; ++node) {
      EXPECT_EQ(jobs_[node]->wait(), 0) << jobs_[node]->err();
      EXPECT_EQ(jobs_[node]->out(),
                "[rank " + std::to_string(node) + "] " + NetnsCluster::address(0) + "\n");
    }
    jobs_.clear();
    service_.reset();
    cluster_.reset();
  }
}

// The store's protocol has no keys, so the store checks addresses.
TEST_F(SeveralHosts, AStoreAdmitsTheJobsOwnHostsAndThoseItIsToldTo) {
  const auto is_admitted = [&](int node, const std::string& port) {
    // A connection that is not admitted is closed. An admitted one receives nothing before it
    // asks.
    auto caller = cluster_->start(node, {"bash", "-c",
                                         "exec 3<>/dev/tcp/" + NetnsCluster::address(0) + "/" +
                                             port + "; read -t 2 -u 3; [ $? -gt 128 ]"});
    return caller->wait() == 0;
  };
  for (const std::string& allowed : {std::string(), NetnsCluster::address(2) + "/32"}) {
    start_hosts(3, false);
    Arguments options{"--nnodes=2"};
    if (!allowed.empty()) options.push_back("--store-allow=" + allowed);
    for (int node = 0; node < 2; ++node) {
      start_node(node, options, "echo store $MASTER_PORT .; exec sleep 1000");
    }
    ASSERT_TRUE(jobs_[0]->wait_for_out(" .")) << jobs_[0]->err();
    const std::string out = jobs_[0]->out();
    const std::size_t at = out.find("store ") + 6;
    const std::string port = out.substr(at, out.find(' ', at) - at);
    EXPECT_TRUE(is_admitted(0, port));
    EXPECT_TRUE(is_admitted(1, port));
    EXPECT_EQ(is_admitted(2, port), !allowed.empty());
    const std::string line = "closed the connection of " + NetnsCluster::address(2);
    if (allowed.empty())
      EXPECT_TRUE(jobs_[0]->wait_for_err(line)) << jobs_[0]->err();
    else
      EXPECT_THAT(jobs_[0]->err(), Not(HasSubstr(line)));
    jobs_.clear();
    cluster_.reset();
  }
}

TEST_F(SeveralHosts, AKilledWorkerRestartsTheJobOnAllHosts) {
  start_hosts(3, false);
  const Arguments options{"--nnodes=3", "--max-restarts=1"};
  for (int node = 0; node < 3; ++node) start_node(node, options, stay_until(1));
  for (int node = 0; node < 3; ++node)
    ASSERT_TRUE(jobs_[node]->wait_for_out("gen 0")) << jobs_[node]->err();
  auto killer = cluster_->start(
      1, {"sh", "-c",
          "until [ -s /dev/shm/worker ]; do sleep 0.01; done; kill -9 $(cat /dev/shm/worker)"});
  ASSERT_EQ(killer->wait(), 0) << killer->err();
  for (int node = 0; node < 3; ++node) {
    EXPECT_EQ(jobs_[node]->wait(), 0) << jobs_[node]->err();
    EXPECT_THAT(jobs_[node]->out(), HasSubstr("gen 1 rank " + std::to_string(node) + " of 3"));
    EXPECT_THAT(jobs_[node]->err(), HasSubstr("on node1, pid"));
  }
}

class EachNode : public SeveralHosts, public testing::WithParamInterface<int> {};

TEST_P(EachNode, MayBeKilledAndTheJobGoesOnWithTheOthers) {
  start_hosts(3, true);
  const Arguments options{"--nnodes=2:3", "--max-restarts=1", "--rdzv-conf=last_call_timeout=30"};
  for (int node = 0; node < 3; ++node) start_node(node, options, stay_until(1));
  for (int node = 0; node < 3; ++node)
    ASSERT_TRUE(jobs_[node]->wait_for_out("gen 0 rank " + std::to_string(node) + " of 3"));
  const TimePoint killed = BootClock::now();
  cluster_->kill_processes(GetParam());
  for (int node = 0; node < 3; ++node) {
    if (node == GetParam()) continue;
    EXPECT_EQ(jobs_[node]->wait(), 0) << jobs_[node]->err();
    EXPECT_THAT(jobs_[node]->out(), HasSubstr("gen 1"));
    const std::string blamed = "(" + NetnsCluster::name(GetParam()) + ") was lost";
    EXPECT_THAT(jobs_[node]->err(), HasSubstr(blamed));
  }
  EXPECT_LT(BootClock::now() - killed, seconds(8)) << "a lost node is noticed within 5 s";
}
INSTANTIATE_TEST_SUITE_P(InTurn, EachNode, testing::Values(0, 1, 2));

TEST_F(SeveralHosts, ACrashedHostIsReplacedByANewOneOfTheSameName) {
  start_hosts(2, true);
  const Arguments options{"--nnodes=2", "--max-restarts=1"};
  for (int node = 0; node < 2; ++node) start_node(node, options, stay_until(1));
  for (int node = 0; node < 2; ++node) ASSERT_TRUE(jobs_[node]->wait_for_out("gen 0"));
  cluster_->crash(0);
  ASSERT_TRUE(jobs_[1]->wait_for_err("waiting: 1 of 2 nodes here: node1")) << jobs_[1]->err();
  jobs_.erase(0);
  cluster_->boot(0);
  start_node(0, options, stay_until(1));
  EXPECT_EQ(jobs_[0]->wait(), 0) << jobs_[0]->err();
  EXPECT_EQ(jobs_[1]->wait(), 0) << jobs_[1]->err();
  EXPECT_THAT(jobs_[0]->out(), HasSubstr("gen 1 rank 0 of 2"))
      << "it takes the place that was left";
  EXPECT_THAT(jobs_[1]->out(), HasSubstr("gen 1 rank 1 of 2")) << "others keep theirs";
}

// A host that is down does not answer, as if its cable were cut. A host that runs refuses
// connections.
TEST_F(SeveralHosts, LosingTheHostOfAnEmbeddedServiceEndsTheJobEverywhereWith67) {
  for (const bool crash : {true, false}) {
    start_hosts(3, false);
    Arguments options{"--nnodes=3", "--max-restarts=3"};
    if (crash) options.push_back("--rdzv-conf=join_timeout=12");
    for (int node = 0; node < 3; ++node) start_node(node, options, stay_until(99));
    for (int node = 0; node < 3; ++node) ASSERT_TRUE(jobs_[node]->wait_for_out("gen 0"));
    const TimePoint lost = BootClock::now();
    if (crash) {
      cluster_->crash(0);
    } else {
      cluster_->kill_processes(0);
    }
    for (int node = 1; node < 3; ++node) {
      EXPECT_EQ(jobs_[node]->wait(), 67) << jobs_[node]->err();
      EXPECT_THAT(jobs_[node]->err(), HasSubstr("agent on node0, so the job ends with that node"));
      EXPECT_THAT(jobs_[node]->err(), HasSubstr("ending this node's workers"));
    }
    EXPECT_LT(BootClock::now() - lost, seconds(25));
    jobs_.clear();
    cluster_.reset();
  }
}

// DDPRUN_OUTAGE_SECONDS is the length of the outages.
class EmbeddedServiceOutage : public SeveralHosts {
 protected:
  static seconds outage() {
    const char* given = std::getenv("DDPRUN_OUTAGE_SECONDS");
    return given ? seconds(std::atoi(given)) : seconds(5);
  }
  void start_job() {
    start_hosts(3, false);
    for (int node = 0; node < 3; ++node) {
      start_node(node, {"--nnodes=3", "--max-restarts=3"}, stay_until(1));
    }
    for (int node = 0; node < 3; ++node) ASSERT_TRUE(jobs_[node]->wait_for_out("gen 0"));
  }
  void expect_one_restart() {
    for (int node = 0; node < 3; ++node) {
      EXPECT_EQ(jobs_[node]->wait(), 0) << jobs_[node]->err();
      EXPECT_THAT(jobs_[node]->out(), HasSubstr("gen 1 rank " + std::to_string(node) + " of 3"));
    }
  }
  void signal_agent(int node, const std::string& signal) {
    EXPECT_EQ(cluster_->start(node, {"pkill", signal, "-n", "-x", "ddprun"})->wait(), 0);
  }
};

TEST_F(EmbeddedServiceOutage, ACutOfANodeThatHostsNothingCostsOneRestart) {
  start_job();
  cluster_->cut(1);
  let_pass(outage());
  cluster_->heal(1);
  expect_one_restart();
  EXPECT_THAT(jobs_[0]->err(), HasSubstr("node 1 (node1) was lost"));
  EXPECT_THAT(jobs_[0]->err(), Not(HasSubstr("(node2) was lost")));
}

TEST_F(EmbeddedServiceOutage, ACutOfTheNodeWithTheServiceIsBlamedOnIt) {
  start_job();
  cluster_->cut(0);
  let_pass(outage());
  cluster_->heal(0);
  expect_one_restart();
  EXPECT_THAT(jobs_[0]->err(), HasSubstr("(node0) was lost: it runs the rendezvous service"));
}

TEST_F(EmbeddedServiceOutage, AnAgentWithTheServiceThatIsStoppedForAWhileCostsNoNode) {
  start_job();
  signal_agent(0, "-STOP");
  let_pass(outage());
  signal_agent(0, "-CONT");
  expect_one_restart();
  EXPECT_THAT(jobs_[0]->err(), HasSubstr("the rendezvous service on node0 did not run for"));
  for (int node = 0; node < 3; ++node) EXPECT_THAT(jobs_[node]->err(), Not(HasSubstr("was lost")));
}

TEST_F(SeveralHosts, ACutOfTwoSecondsIsNotNoticed) {
  start_hosts(2, true);
  const std::string script =
      "echo gen $DDPRUN_GENERATION; until [ -e /dev/shm/go ]; do sleep 0.02; done";
  for (int node = 0; node < 2; ++node) start_node(node, {"--nnodes=2", "--max-restarts=1"}, script);
  for (int node = 0; node < 2; ++node) ASSERT_TRUE(jobs_[node]->wait_for_out("gen 0"));
  const std::uint64_t seed = test_seed(1);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  for (int cut = 0; cut < 3; ++cut) {
    let_pass(up_to(seconds(1), rng));  // at any time between two heartbeats
    cluster_->cut(1);
    let_pass(seconds(2));
    cluster_->heal(1);
    let_pass(seconds(3));  // failures of the cut show within the agents' patience
  }
  for (int node = 0; node < 2; ++node)
    EXPECT_EQ(cluster_->start(node, {"touch", "/dev/shm/go"})->wait(), 0);
  for (int node = 0; node < 2; ++node) {
    EXPECT_EQ(jobs_[node]->wait(), 0) << jobs_[node]->err();
    EXPECT_EQ(jobs_[node]->out(), "[rank " + std::to_string(node) + "] gen 0\n");
    EXPECT_THAT(jobs_[node]->err(), Not(HasSubstr("has not answered")));
  }
}

TEST_F(SeveralHosts, ACutCableEndsTheWorkersBehindItBeforeTheOthersGoOn) {
  start_hosts(3, true);
  const Arguments options{"--nnodes=2:3", "--max-restarts=3"};
  // Generation 1 is without the cut node. When it is back the job forms again, as generation
  // 2.
  for (int node = 0; node < 3; ++node) start_node(node, options, stay_until(2));
  for (int node = 0; node < 3; ++node) ASSERT_TRUE(jobs_[node]->wait_for_out("gen 0"));
  auto workers = cluster_->start(
      2, {"sh", "-c",
          "until ! pgrep -x sleep > /dev/null || [ $(pgrep -x sleep) = 1 ]; do sleep 0.01; done"});
  cluster_->cut(2);
  ASSERT_TRUE(jobs_[2]->wait_for_err("ending this node's workers")) << jobs_[2]->err();
  ASSERT_EQ(workers->wait(seconds(3)), 0) << "the cut node still has workers";
  EXPECT_THAT(jobs_[0]->out(), Not(HasSubstr("gen 1"))) << "the others went on too early";
  ASSERT_TRUE(jobs_[0]->wait_for_out("gen 1 rank 0 of 2"));
  ASSERT_TRUE(jobs_[1]->wait_for_out("gen 1 rank 1 of 2"));
  cluster_->heal(2);
  for (int node = 0; node < 3; ++node) {
    EXPECT_EQ(jobs_[node]->wait(), 0) << jobs_[node]->err();
    EXPECT_THAT(jobs_[node]->out(), HasSubstr("gen 2 rank " + std::to_string(node) + " of 3"));
  }
}

}  // namespace
}  // namespace ddprun
