#include "launcher/machine/core/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Shape {
  int packages = 1;
  int nodes = 1;   // NUMA nodes of each package
  int caches = 1;  // caches of each NUMA node
  int cores = 1;   // cores of each cache
  int threads = 1;
};

// Returns a machine with this shape. The CPUs are numbered as Linux numbers them on most
// machines: first one thread of every core, then the other threads.
Machine machine_of(const Shape& shape) {
  Machine machine;
  const int total = shape.packages * shape.nodes * shape.caches * shape.cores;
  for (int i = 0; i < total; ++i) {
    ProcessorCore core;
    core.cache = i / shape.cores;
    core.numa_node = core.cache / shape.caches;
    core.package = core.numa_node / shape.nodes;
    for (int thread = 0; thread < shape.threads; ++thread) core.cpus.insert(i + thread * total);
    machine.usable.insert(core.cpus.begin(), core.cpus.end());
    machine.cores.push_back(std::move(core));
  }
  return machine;
}

void add_gpu(Machine& machine, int numa_node) {
  GpuPlace gpu{std::to_string(machine.gpus.size()), "", {}};
  for (const ProcessorCore& core : machine.cores) {
    if (core.numa_node == numa_node) gpu.near.insert(core.cpus.begin(), core.cpus.end());
  }
  machine.gpus.push_back(std::move(gpu));
}

Result<Placement> place(const Machine& machine, BindPolicy policy, int workers) {
  return place_workers(machine, {policy, "--bind x", workers});
}

std::vector<std::string> cpus_of(const Placement& placement) {
  std::vector<std::string> texts;
  for (const Seat& seat : placement.seats) texts.push_back(to_text(seat.cpus));
  return texts;
}

std::vector<int> threads_of(const Placement& placement) {
  std::vector<int> threads;
  for (const Seat& seat : placement.seats) threads.push_back(seat.threads);
  return threads;
}

// --- one line for each machine, policy and number of workers ---

struct Row {
  const char* name;
  Shape shape;
  const char* usable;  // empty: all CPUs
  std::vector<int> gpu_nodes;
  BindPolicy policy;
  int workers;
  std::vector<std::string> cpus;
  std::vector<int> threads;
  std::size_t remarks = 0;
};

using P = BindPolicy;
const Shape kOneCore{};
const Shape kLaptop{.cores = 4, .threads = 2};                                        // CPUs 0-7
const Shape kTwoSockets{.packages = 2, .cores = 4};                                   // CPUs 0-7
const Shape kEpyc{.packages = 2, .nodes = 4, .caches = 2, .cores = 2, .threads = 2};  // 0-63

const Row kRows[] = {
    {"one core, one worker", kOneCore, "", {}, P::kAuto, 1, {"0"}, {1}},
    {"one core, core", kOneCore, "", {}, P::kCore, 1, {"0"}, {1}},
    {"one core, three workers share", kOneCore, "", {}, P::kAuto, 3, {"0", "0", "0"}, {1, 1, 1}, 1},
    {"one core, numa shares too", kOneCore, "", {}, P::kNuma, 2, {"0", "0"}, {1, 1}, 1},

    {"threads of a core stay together",
     kLaptop,
     "",
     {},
     P::kCore,
     2,
     {"0-1,4-5", "2-3,6-7"},
     {2, 2}},
    {"auto of one node", kLaptop, "", {}, P::kAuto, 4, {"0,4", "1,5", "2,6", "3,7"}, {1, 1, 1, 1}},
    {"what is left over goes to the first",
     kLaptop,
     "",
     {},
     P::kCore,
     3,
     {"0-1,4-5", "2,6", "3,7"},
     {2, 1, 1}},
    {"half a core is a core", kLaptop, "0-3,5", {}, P::kCore, 2, {"0-1,5", "2-3"}, {2, 2}},
    {"holes in the cpuset", kLaptop, "1,3,5,7", {}, P::kAuto, 2, {"1,5", "3,7"}, {1, 1}},
    {"threads are no cores",
     kLaptop,
     "",
     {},
     P::kNuma,
     5,
     {"0-7", "0-7", "0-7", "0-7", "0-7"},
     {1, 1, 1, 1, 1},
     1},

    {"a worker for each socket", kTwoSockets, "", {}, P::kAuto, 2, {"0-3", "4-7"}, {4, 4}},
    {"one worker has all", kTwoSockets, "", {}, P::kAuto, 1, {"0-7"}, {8}},
    {"numa: one worker has one node", kTwoSockets, "", {}, P::kNuma, 1, {"0-3"}, {4}},
    {"numa: none straddles", kTwoSockets, "", {}, P::kNuma, 3, {"0-1", "2-3", "4-7"}, {2, 2, 4}},
    {"core: equal parts straddle",
     kTwoSockets,
     "",
     {},
     P::kCore,
     3,
     {"0-2", "3-5", "6-7"},
     {3, 3, 2}},
    {"neighbours by rank",
     kTwoSockets,
     "",
     {},
     P::kAuto,
     4,
     {"0-1", "2-3", "4-5", "6-7"},
     {2, 2, 2, 2}},
    {"a small rest of a node is left alone",
     kTwoSockets,
     "0,4-7",
     {},
     P::kNuma,
     2,
     {"4-5", "6-7"},
     {2, 2}},
    {"and used where it is worth it",
     kTwoSockets,
     "0-1,4-7",
     {},
     P::kNuma,
     3,
     {"0-1", "4-5", "6-7"},
     {2, 2, 2}},
    {"a cpuset of one node", kTwoSockets, "4-7", {}, P::kAuto, 2, {"4-5", "6-7"}, {2, 2}},

    {"numa spreads over packages first",
     kEpyc,
     "",
     {},
     P::kNuma,
     2,
     {"0-3,32-35", "16-19,48-51"},
     {4, 4}},
    {"auto leaves no core idle",
     kEpyc,
     "",
     {},
     P::kAuto,
     2,
     {"0-15,32-47", "16-31,48-63"},
     {16, 16}},
    {"a node each",
     kEpyc,
     "",
     {},
     P::kAuto,
     8,
     {"0-3,32-35", "4-7,36-39", "8-11,40-43", "12-15,44-47", "16-19,48-51", "20-23,52-55",
      "24-27,56-59", "28-31,60-63"},
     {4, 4, 4, 4, 4, 4, 4, 4}},
    {"more workers than nodes",
     kEpyc,
     "0-7,32-39",
     {},
     P::kAuto,
     3,
     {"0-1,32-33", "2-3,34-35", "4-7,36-39"},
     {2, 2, 4}},

    {"next to their GPUs",
     kTwoSockets,
     "",
     {1, 1, 0},
     P::kGpu,
     3,
     {"4-5", "6-7", "0-3"},
     {2, 2, 4}},
    {"auto looks for GPUs", kTwoSockets, "", {1, 0}, P::kAuto, 2, {"4-7", "0-3"}, {4, 4}},
    {"numa does not", kTwoSockets, "", {1, 0}, P::kNuma, 2, {"0-3", "4-7"}, {4, 4}},
    {"all GPUs on one side",
     kTwoSockets,
     "",
     {1, 1, 1, 1},
     P::kGpu,
     4,
     {"4", "5", "6", "7"},
     {1, 1, 1, 1}},
    {"more of them than cores there",
     kTwoSockets,
     "0-5",
     {1, 1, 1},
     P::kGpu,
     3,
     {"4-5", "4-5", "4-5"},
     {1, 1, 1},
     1},
    {"fewer GPUs than workers: the others go where room is",
     kTwoSockets,
     "",
     {0},
     P::kAuto,
     3,
     {"0-1", "2-3", "4-7"},
     {2, 2, 4}},
    {"a GPU whose CPUs are not ours",
     kTwoSockets,
     "0-3",
     {1, 0},
     P::kGpu,
     2,
     {"0-1", "2-3"},
     {2, 2},
     1},

    {"torchrun's node", kTwoSockets, "", {1, 1}, P::kNode, 2, {"4-7", "4-7"}, {2, 2}},
    {"torchrun's node without GPUs", kTwoSockets, "", {}, P::kNode, 2, {"0-3", "4-7"}, {4, 4}},
    {"torchrun's socket",
     kEpyc,
     "",
     {4, 6, 0},
     P::kSocket,
     3,
     {"16-31,48-63", "16-31,48-63", "0-15,32-47"},
     {8, 8, 16}},
    {"torchrun's core-complex",
     kEpyc,
     "",
     {1, 1, 1},
     P::kCoreComplex,
     3,
     {"4-5,36-37", "6-7,38-39", "4-5,36-37"},
     {1, 2, 1}},
    {"the larger cache first", kEpyc, "4,6-7", {1}, P::kCoreComplex, 1, {"6-7"}, {2}},
};

TEST(Placement, Table) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    Machine machine = machine_of(row.shape);
    if (*row.usable) machine.usable = parse_cpu_list(row.usable).value();
    for (const int node : row.gpu_nodes) add_gpu(machine, node);
    const Result<Placement> placed = place(machine, row.policy, row.workers);
    if (!placed) {
      ADD_FAILURE() << placed.error().message();
      continue;
    }
    EXPECT_EQ(cpus_of(*placed), row.cpus);
    EXPECT_EQ(threads_of(*placed), row.threads);
    EXPECT_EQ(placed->remarks.size(), row.remarks) << testing::PrintToString(placed->remarks);
  }
}

// --- what holds for every machine ---

// Calls `check` for machines of many shapes, with partial cpusets and different numbers of GPUs.
template <class Check>
void for_many_machines(Check&& check) {
  for (const int packages : {1, 2}) {
    for (const int nodes : {1, 3}) {
      for (const int cores : {1, 3}) {
        for (const int threads : {1, 2}) {
          for (const int hole : {0, 3, 4}) {
            for (const int gpus : {0, 1, 3, 8}) {
              Machine machine = machine_of({packages, nodes, 1, cores, threads});
              if (hole) std::erase_if(machine.usable, [&](int cpu) { return cpu % hole == 1; });
              for (int i = 0; i < gpus; ++i) add_gpu(machine, (i * 5 + 1) % (packages * nodes));
              check(machine);
            }
          }
        }
      }
    }
  }
}

TEST(Placement, NoTwoWorkersShareACpuWhileThereAreCoresForAll) {
  int placed_jobs = 0;
  for_many_machines([&](const Machine& machine) {
    const int cores = static_cast<int>(usable_cores(machine).size());
    for (int workers = 1; workers <= cores; ++workers) {
      for (const BindPolicy policy : {P::kAuto, P::kCore, P::kNuma, P::kGpu}) {
        const Result<Placement> placed = place(machine, policy, workers);
        if (!placed) {
          EXPECT_EQ(policy, P::kGpu);
          continue;
        }
        ++placed_jobs;
        CpuSet taken;
        std::size_t count = 0;
        for (const Seat& seat : placed->seats) {
          EXPECT_FALSE(seat.cpus.empty());
          EXPECT_GE(seat.threads, 1);
          taken.insert(seat.cpus.begin(), seat.cpus.end());
          count += seat.cpus.size();
        }
        EXPECT_EQ(common(taken, machine.usable), taken) << "only what is ours";
        const bool gpus_crowd = !placed->remarks.empty() && !machine.gpus.empty();
        if (!gpus_crowd) {
          EXPECT_EQ(taken.size(), count) << placed->policy << " " << workers;
        }
      }
    }
  });
  EXPECT_GT(placed_jobs, 2000);
}

TEST(Placement, MoreWorkersThanCoresAreNeverLeftWithoutACpu) {
  for_many_machines([&](const Machine& machine) {
    const int workers = static_cast<int>(usable_cores(machine).size()) + 3;
    for (const BindPolicy policy : {P::kAuto, P::kNuma, P::kNode, P::kSocket, P::kCoreComplex}) {
      const Result<Placement> placed = place(machine, policy, workers);
      ASSERT_TRUE(placed);
      for (const Seat& seat : placed->seats) EXPECT_FALSE(seat.cpus.empty());
    }
    EXPECT_FALSE(place(machine, P::kCore, workers));
  });
}

// --- messages ---

TEST(Placement, CoreSaysHowManyWorkersThereIsRoomFor) {
  const Result<Placement> placed = place(machine_of(kLaptop), P::kCore, 5);
  ASSERT_FALSE(placed);
  EXPECT_EQ(placed.error().message(),
            "4 usable cores for 5 workers: start at most 4, or give --bind auto, which lets them "
            "share");
}

TEST(Placement, GpuSaysWhatIsMissing) {
  Machine machine = machine_of(kTwoSockets);
  EXPECT_EQ(place(machine, P::kGpu, 1).error().message(),
            "no GPU is visible here: give --bind numa, core or auto");
  add_gpu(machine, 0);
  EXPECT_EQ(place(machine, P::kGpu, 2).error().message(),
            "1 visible GPU for 2 workers: start at most 1, or give --bind auto");
}

TEST(Placement, AMachineOfWhichNoCpuIsOursIsRefused) {
  Machine machine = machine_of(kTwoSockets);
  machine.usable = {77};
  EXPECT_EQ(place(machine, P::kAuto, 2).error().message(),
            "no CPU of this machine is usable: none of CPUs 77 is known");
}

TEST(Placement, ARemarkSaysWhyWorkersShare) {
  const Result<Placement> placed = place(machine_of(kOneCore), P::kAuto, 2);
  ASSERT_TRUE(placed);
  EXPECT_THAT(placed->remarks, ElementsAre("--bind x: 1 usable core for 2 workers: workers share a "
                                           "NUMA node that has fewer cores than workers"));
}

TEST(Placement, ARemarkNamesAGpuThatIsFar) {
  Machine machine = machine_of(kTwoSockets);
  add_gpu(machine, 1);
  machine.gpus.push_back({"GPU-7", "", {}});
  machine.usable = {0, 1};
  const Result<Placement> placed = place(machine, P::kGpu, 2);
  ASSERT_TRUE(placed);
  EXPECT_THAT(
      placed->remarks,
      ElementsAre(HasSubstr("GPU 0: none of its nearest CPUs 4-7 is usable; its worker is "),
                  HasSubstr("GPU GPU-7: its nearest CPUs are not known; ")));
  EXPECT_EQ(placed->seats[0].gpu, 0);
}

TEST(Placement, EverySeatSaysWhy) {
  Machine machine = machine_of(kTwoSockets);
  add_gpu(machine, 1);
  const Result<Placement> placed = place(machine, P::kAuto, 3);
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->policy, "--bind x (gpu)");
  EXPECT_EQ(placed->seats[0].why, "all of NUMA node 1, next to its GPU");
  EXPECT_EQ(placed->seats[1].why, "its part of NUMA node 0");
  EXPECT_EQ(describe(*placed),
            "--bind x (gpu): local rank 0 on CPUs 4-7; 1 on CPUs 0-1; 2 on CPUs 2-3");
}

TEST(Placement, ASeatFarFromItsGpuSaysSo) {
  Machine machine = machine_of(kTwoSockets);
  add_gpu(machine, 1);
  add_gpu(machine, 1);
  const Result<Placement> placed = place(machine, P::kNuma, 2);
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->seats[0].why, "all of NUMA node 0, far from its GPU");
  EXPECT_EQ(placed->seats[1].why, "all of NUMA node 1, next to its GPU");
  EXPECT_EQ(placed->seats[1].gpu, 1);
}

TEST(Placement, OfManyWorkersALineNamesTheFirst) {
  const Result<Placement> placed = place(machine_of({.cores = 20}), P::kCore, 20);
  ASSERT_TRUE(placed);
  EXPECT_THAT(describe(*placed), testing::EndsWith("; 15 on CPUs 15; and 4 more"));
}

TEST(Placement, WithoutBindingThereAreOnlyThreads) {
  const Result<Placement> placed = place(machine_of(kLaptop), P::kNone, 3);
  ASSERT_TRUE(placed);
  EXPECT_THAT(threads_of(*placed), ElementsAre(1, 1, 1));
  for (const Seat& seat : placed->seats) EXPECT_THAT(seat.cpus, IsEmpty());
}

TEST(Placement, ThreadsAreCoresForEachWorkerAndAtLeastOne) {
  EXPECT_EQ(threads_of_each(8, 2), 4);
  EXPECT_EQ(threads_of_each(7, 2), 3);
  EXPECT_EQ(threads_of_each(2, 3), 1);
  EXPECT_EQ(threads_of_each(5, 1), 5);
}

TEST(Placement, APackageForEachCpuIsNoNumaNode) {
  Machine machine = machine_of({.packages = 8});
  for (ProcessorCore& core : machine.cores) core.numa_node = 0;
  const Result<Placement> placed = place(machine, P::kAuto, 2);
  ASSERT_TRUE(placed);
  EXPECT_THAT(cpus_of(*placed), ElementsAre("0-3", "4-7"));
}

}  // namespace
}  // namespace ddprun
