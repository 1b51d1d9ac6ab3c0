// Tests the example collectives_tour with 2 and 3 ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.h"
#include "tests/support/worker_cluster.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing_support::WorkerCluster;

const std::string kProgram = testing_support::program("collectives_tour");

TEST(CollectivesTour, PrintsEveryRankInOrder) {
  WorkerCluster cluster({.command = {kProgram}, .per_node = 3});
  ASSERT_TRUE(cluster.wait_for_all(seconds(30)));
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(cluster.exit_code(rank), 0) << cluster.output(rank);
  EXPECT_EQ(cluster.output(1), "");
  EXPECT_EQ(cluster.output(2), "");
  EXPECT_EQ(cluster.output(0), R"(3 ranks over the cpu backend

all_reduce, sum: every rank gets the sum
  rank 0: [0 1] -> [3 6]
  rank 1: [1 2] -> [3 6]
  rank 2: [2 3] -> [3 6]

all_reduce, avg: every rank gets the average
  rank 0: [0 1] -> [1 2]
  rank 1: [1 2] -> [1 2]
  rank 2: [2 3] -> [1 2]

reduce, max, to rank 0: the others keep what they had
  rank 0: [0 1] -> [2 3]
  rank 1: [1 2] -> [1 2]
  rank 2: [2 3] -> [2 3]

broadcast from rank 2
  rank 0: [0 1] -> [2 3]
  rank 1: [1 2] -> [2 3]
  rank 2: [2 3] -> [2 3]

all_gather: every rank gets all parts
  rank 0: [0 1] -> [0 1] [1 2] [2 3]
  rank 1: [1 2] -> [0 1] [1 2] [2 3]
  rank 2: [2 3] -> [0 1] [1 2] [2 3]

reduce_scatter, sum: rank r gets the sum of part r of all ranks
  rank 0: [0] [1] [2] -> [30]
  rank 1: [10] [11] [12] -> [33]
  rank 2: [20] [21] [22] -> [36]

gather to rank 0
  rank 0: [0 1] -> [0 1] [1 2] [2 3]
  rank 1: [1 2] -> nothing
  rank 2: [2 3] -> nothing

scatter from rank 0: rank r gets part r
  rank 0: [0] [1] [2] -> [0]
  rank 1: nothing -> [1]
  rank 2: nothing -> [2]

send and recv: to the next rank
  rank 0: rank 2 sent [2 3]
  rank 1: rank 0 sent [0 1]
  rank 2: rank 1 sent [1 2]

two asynchronous all_reduces in flight, waited for in any order
  rank 0: [3 6] and [30 60]
  rank 1: [3 6] and [30 60]
  rank 2: [3 6] and [30 60]

all_gather_object: every rank gets the JSON value of every rank
  rank 0: [{"even":true,"rank":0},{"even":false,"rank":1},{"even":true,"rank":2}]
  rank 1: [{"even":true,"rank":0},{"even":false,"rank":1},{"even":true,"rank":2}]
  rank 2: [{"even":true,"rank":0},{"even":false,"rank":1},{"even":true,"rank":2}]

broadcast_object from rank 0, a JSON value
  rank 0: {"lr":0.1,"name":"tour"}
  rank 1: {"lr":0.1,"name":"tour"}
  rank 2: {"lr":0.1,"name":"tour"}

barrier: no rank continues before all have arrived
  rank 0: passed
  rank 1: passed
  rank 2: passed
)");
}

TEST(CollectivesTour, GivesTheSameInTwoWorldsOfOneSize) {
  WorkerCluster one_node({.command = {kProgram}, .per_node = 2});
  ASSERT_TRUE(one_node.wait_for_all(seconds(30)));
  WorkerCluster two_nodes({.command = {kProgram}, .nodes = 2, .per_node = 1});
  ASSERT_TRUE(two_nodes.wait_for_all(seconds(30)));
  EXPECT_EQ(one_node.exit_code(0), 0) << one_node.output(0);
  EXPECT_EQ(one_node.output(0), two_nodes.output(0));
  EXPECT_THAT(one_node.output(0), HasSubstr("send and recv: to the next rank\n"
                                            "  rank 0: rank 1 sent [1 2]\n"
                                            "  rank 1: rank 0 sent [0 1]\n"));
}

TEST(CollectivesTour, SaysInALineWhatIsWrong) {
  WorkerCluster cluster({.command = {kProgram, "--nonsense"}, .per_node = 1});
  ASSERT_TRUE(cluster.wait_for_all(seconds(30)));
  EXPECT_EQ(cluster.exit_code(0), 2);
  EXPECT_THAT(cluster.output(0), HasSubstr("--nonsense"));
  EXPECT_EQ(std::ranges::count(cluster.output(0), '\n'), 1);
}

}  // namespace
}  // namespace ddprun
