#include "launcher/plan/core/binding_drawing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::Not;

// Returns a machine of two packages. Each has one NUMA node of four cores, with two threads per
// core and two caches.
Machine two_sockets() {
  Machine machine;
  for (int i = 0; i < 8; ++i) {
    machine.cores.push_back(
        {.package = i / 4, .numa_node = i / 4, .cache = i / 2, .cpus = {i, i + 8}});
    machine.usable.insert({i, i + 8});
  }
  machine.gpus.push_back({"0", "0000:3b:00.0", {4, 5, 6, 7, 12, 13, 14, 15}});
  return machine;
}

std::string drawing_of(const Machine& machine, BindPolicy policy, int workers,
                       const std::string& threads = "") {
  const Result<Placement> placement = place_workers(machine, {policy, "--bind x", workers});
  EXPECT_TRUE(placement);
  return placement ? draw({"node1", machine, *placement, threads}) : "";
}

TEST(BindingDrawing, ShowsTheMachineAndWhoRunsWhere) {
  EXPECT_EQ(drawing_of(two_sockets(), BindPolicy::kAuto, 3),
            "node1: 2 packages, 2 NUMA nodes, 8 cores, 16 CPUs, 1 visible GPU; usable: CPUs 0-15\n"
            "--bind x (gpu), 3 workers\n"
            "  package 0\n"
            "    NUMA node 0  CPUs 0-3,8-11\n"
            "      1 1 | 2 2\n"
            "  package 1\n"
            "    NUMA node 1  CPUs 4-7,12-15  GPU 0\n"
            "      0 0 | 0 0\n"
            "  the local rank that runs on each core; * several, . none, x not usable\n"
            "local rank 0:  CPUs 4-7,12-15  4 cores  package 1  NUMA node 1  GPU 0 (0000:3b:00.0)  "
            "OMP_NUM_THREADS=4  all of NUMA node 1, next to its GPU\n"
            "local rank 1:  CPUs 0-1,8-9    2 cores  package 0  NUMA node 0                        "
            "OMP_NUM_THREADS=2  its part of NUMA node 0\n"
            "local rank 2:  CPUs 2-3,10-11  2 cores  package 0  NUMA node 0                        "
            "OMP_NUM_THREADS=2  its part of NUMA node 0\n");
}

TEST(BindingDrawing, ShowsWhatIsNotOursAndWhatNobodyUses) {
  Machine machine = two_sockets();
  machine.gpus.clear();
  machine.usable = {2, 3, 4, 5, 6, 7};
  const std::string text = drawing_of(machine, BindPolicy::kNuma, 1);
  EXPECT_THAT(text, HasSubstr("      x x | . .\n"));
  EXPECT_THAT(text, HasSubstr("      0 0 | 0 0\n"));
  EXPECT_THAT(text, HasSubstr("usable: CPUs 2-7\n"));
}

TEST(BindingDrawing, ShowsWhereSeveralShare) {
  Machine machine = two_sockets();
  EXPECT_THAT(drawing_of(machine, BindPolicy::kNode, 12), HasSubstr(" * "));
}

TEST(BindingDrawing, WithoutBindingEveryWorkerMayRunEverywhere) {
  const std::string text = drawing_of(two_sockets(), BindPolicy::kNone, 2, "7");
  EXPECT_THAT(text, HasSubstr("      + + | + +\n"));
  EXPECT_THAT(text, HasSubstr("local rank 1:  CPUs 0-15  8 cores  package 0-1  NUMA node 0-1"));
  EXPECT_THAT(text, HasSubstr("OMP_NUM_THREADS=7  not bound\n"));
  EXPECT_THAT(text, Not(HasSubstr("OMP_NUM_THREADS=4")));
}

TEST(BindingDrawing, LongNodesTakeSeveralLines) {
  Machine machine;
  for (int i = 0; i < 40; ++i) {
    machine.cores.push_back({.package = 0, .numa_node = 0, .cache = 0, .cpus = {i}});
    machine.usable.insert(i);
  }
  const std::string text = drawing_of(machine, BindPolicy::kCore, 20);
  EXPECT_THAT(text, HasSubstr("15 15\n      16 16 17 17 18 18 19 19\n"));
}

}  // namespace
}  // namespace ddprun
