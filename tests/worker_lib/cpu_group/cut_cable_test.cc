// Runs two ranks on each of two hosts (network namespaces) in every collective at once, then
// cuts the cable between the hosts. Each collective has its own world. Each rank checks every
// result (rank_main.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/netns_cluster.h"
#include "tests/support/program.h"
#include "tests/worker_lib/cpu_group/collectives.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::Arguments;
using testing_support::ChildProcess;
using testing_support::NetnsCluster;
using testing_support::program;

constexpr const char* kLetters = "aabb";

class CutCable : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why_not = NetnsCluster::why_not();
    if (!why_not.empty()) GTEST_SKIP() << "no hosts in network namespaces: " << why_not;
    cluster_ = std::make_unique<NetnsCluster>(2);
  }

  // Starts a world for each collective. Each has another size than the one before.
  void start(Duration timeout) {
    int port = 29500;
    std::size_t turn = 0;
    for (const char* collective : kCollectives) {
      stores_.push_back(
          cluster_->start(0, {program("ddp-store"), "--listen", "*:" + std::to_string(++port)}));
      ASSERT_TRUE(stores_.back()->wait_for_out(std::to_string(port))) << stores_.back()->err();
      const std::size_t bytes = bytes_of(kSizes[turn++ % std::size(kSizes)], kLetters);
      for (int rank = 0; rank < 4; ++rank) {
        const int node = rank / 2;
        ranks_[collective].push_back(cluster_->start(
            node, {program("cpu_test_rank"), NetnsCluster::address(0) + ":" + std::to_string(port),
                   kLetters, std::to_string(rank), collective, std::to_string(bytes),
                   std::to_string(timeout / milliseconds(1)), NetnsCluster::address(node)}));
      }
    }
    for (auto& [collective, world] : ranks_) {
      for (auto& rank : world) ASSERT_EQ(rank->line(), "ready") << collective << rank->err();
    }
  }

  // Expects that every rank ends with this error, and blames a rank of the other host.
  void expect_end(const std::string& kind, const std::string& words, TimePoint limit) {
    for (auto& [collective, world] : ranks_) {
      for (int rank = 0; rank < 4; ++rank) {
        SCOPED_TRACE(collective + " on rank " + std::to_string(rank));
        const auto line = world[rank]->line();
        ASSERT_TRUE(line) << world[rank]->err();
        EXPECT_THAT(*line, AnyOf(StartsWith("end " + kind + (rank < 2 ? " 2 " : " 0 ")),
                                 StartsWith("end " + kind + (rank < 2 ? " 3 " : " 1 "))));
        EXPECT_THAT(*line, HasSubstr(words));
        EXPECT_LT(BootClock::now(), limit);
        EXPECT_EQ(world[rank]->line(), "open 0") << "it leaks descriptors";
      }
    }
  }

  std::unique_ptr<NetnsCluster> cluster_;
  std::vector<std::unique_ptr<ChildProcess>> stores_;
  std::map<std::string, std::vector<std::unique_ptr<ChildProcess>>> ranks_;
};

TEST_F(CutCable, IsNoticedByAllRanksWithinTheLeaseWhateverTheyCall) {
  start(seconds(60));
  ASSERT_FALSE(HasFatalFailure());
  const TimePoint cut = BootClock::now();
  cluster_->cut(1);
  expect_end("peer lost", "out of reach (its node has not answered for 5.0 s)", cut + seconds(8));
}

TEST_F(CutCable, IsATimeoutForAllRanksWhoseDeadlineIsShorterThanTheLease) {
  start(seconds(2));
  ASSERT_FALSE(HasFatalFailure());
  const TimePoint cut = BootClock::now();
  cluster_->cut(1);
  expect_end("timeout", " not answer", cut + seconds(4));
}

}  // namespace
}  // namespace ddprun
