#include "launcher/cluster/core/node_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// The lists and their names were printed by scontrol show hostnames of Slurm 22.05.
TEST(ExpandNodeList, ReadsEveryFormThatSlurmWrites) {
  EXPECT_THAT(*expand_node_list("node0"), ElementsAre("node0"));
  EXPECT_THAT(*expand_node_list("node[0-3,7]"),
              ElementsAre("node0", "node1", "node2", "node3", "node7"));
  EXPECT_THAT(*expand_node_list("n[001,003-004]"), ElementsAre("n001", "n003", "n004"));
  EXPECT_THAT(*expand_node_list("rack1-n[1,3],gpu5"), ElementsAre("rack1-n1", "rack1-n3", "gpu5"));
  EXPECT_THAT(*expand_node_list("x[1-2]y[0-1]"), ElementsAre("x1y0", "x1y1", "x2y0", "x2y1"));
  EXPECT_THAT(*expand_node_list("n[0-1,0]"), ElementsAre("n0", "n1", "n0"));
}

// Slurm never writes a name like that of the first nodes, and refuses to read it.
TEST(ExpandNodeList, ReadsMoreThanSlurmDoes) {
  EXPECT_THAT(*expand_node_list("a[08-09]b,c"), ElementsAre("a08b", "a09b", "c"));
  EXPECT_THAT(*expand_node_list("a[99999999998-99999999999]"),
              ElementsAre("a99999999998", "a99999999999"));
}

TEST(ExpandNodeList, KeepsTheWidthOfTheFirstNumber) {
  EXPECT_THAT(*expand_node_list("a[08-11]"), ElementsAre("a08", "a09", "a10", "a11"));
  EXPECT_THAT(*expand_node_list("a[9-10]"), ElementsAre("a9", "a10"));
}

TEST(ExpandNodeList, RefusesWhatIsNoList) {
  for (const char* bad : {"",
                          ",",
                          "a,",
                          "a,,b",
                          "a[",
                          "a]",
                          "a[1",
                          "a[]",
                          "a[1-]",
                          "a[-2]",
                          "a[3-1]",
                          "a[x]",
                          "a[1,]",
                          "a[[1]]",
                          "a[1]]",
                          "a[1-2-3]",
                          "a[9999999999999999999]",
                          "a[0-99999999]",
                          "a[0-99999999999]",
                          "a[0-999]b[0-999]"}) {
    EXPECT_FALSE(expand_node_list(bad)) << bad;
  }
  EXPECT_THAT(expand_node_list("a[").error().cause, HasSubstr("'a['"));
}

TEST(ExpandCounts, ReadsEveryFormThatSlurmWrites) {
  EXPECT_THAT(*expand_counts("1"), ElementsAre(1));
  EXPECT_THAT(*expand_counts("8(x2),4"), ElementsAre(8, 8, 4));
  EXPECT_THAT(*expand_counts("1(x2000)"), SizeIs(2000));
}

TEST(ExpandCounts, RefusesWhatIsNoList) {
  for (const char* bad : {"", ",", "0", "-1", "8(x)", "8(x0)", "8(x2", "8x2", "8(x-1)", "a", "8,",
                          "1(x99999999999999)"}) {
    EXPECT_FALSE(expand_counts(bad)) << bad;
  }
}

}  // namespace
}  // namespace ddprun
