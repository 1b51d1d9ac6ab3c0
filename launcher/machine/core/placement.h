// Placement: which CPUs each worker of a node may run on, and how many threads it should start.
//
// --bind, and torchrun's --numa-binding, decide:
//   none          every worker runs wherever the agent may
//   core          the usable cores in equal parts, whatever NUMA nodes they belong to
//   numa          each worker stays in one NUMA node; those of one node divide its cores
//   gpu           the same, in the NUMA node next to the worker's GPU
//   auto          gpu where there are GPUs; else numa, or core where there are fewer workers than
//                 NUMA nodes; torchrun's `exclusive`
//   node, socket  torchrun's: all of the NUMA node, or package, next to the GPU, shared by the
//                 workers that have the same one
//   core-complex  torchrun's: one last-level cache of that NUMA node
//
// A worker's home, the NUMA node it belongs to, is where its GPU is; without a GPU the node that then
// has the most cores for each of its workers, so that the slowest worker is as fast as can be.
// A core is never cut: the hardware threads of one go to one worker. With none of the first five
// words do two workers share a CPU, unless there are more of them than cores: then those of a NUMA
// node share all of it, and a remark says so; core refuses.
//
// Pure; any thread. Machine comes from launcher/machine/topology.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_names.h"
#include "base/result.h"
#include "launcher/machine/core/cpu_set.h"

namespace ddprun {

enum class BindPolicy { kNone, kAuto, kCore, kNuma, kGpu, kNode, kSocket, kCoreComplex };

// --bind.
inline constexpr EnumNames<BindPolicy, 5> kBindWords{{
    {BindPolicy::kNone, "none"},
    {BindPolicy::kAuto, "auto"},
    {BindPolicy::kCore, "core"},
    {BindPolicy::kNuma, "numa"},
    {BindPolicy::kGpu, "gpu"},
}};
// --numa-binding.
inline constexpr EnumNames<BindPolicy, 4> kNumaBindingWords{{
    {BindPolicy::kNode, "node"},
    {BindPolicy::kSocket, "socket"},
    {BindPolicy::kAuto, "exclusive"},
    {BindPolicy::kCoreComplex, "core-complex"},
}};

struct ProcessorCore {
  int package = 0;
  int numa_node = 0;  // as the kernel numbers it
  int cache = 0;      // last-level cache, numbered through the machine
  CpuSet cpus;        // its hardware threads
};

struct GpuPlace {
  std::string name;    // as CUDA_VISIBLE_DEVICES names it
  std::string bus_id;  // "0000:3b:00.0"; empty: not known
  CpuSet near;         // the CPUs that are nearest to it; empty: not known
};

struct Machine {
  std::vector<ProcessorCore> cores;  // all there are, those of one NUMA node and cache together
  std::vector<GpuPlace> gpus;        // those that workers see; worker i has the i-th
  CpuSet usable;                     // what the scheduler has given us
};

// Of one worker, by local rank.
struct Seat {
  CpuSet cpus;             // empty: the worker is not bound
  int cores = 0;           // that these are
  int threads = 1;         // for OMP_NUM_THREADS: cores for each worker that runs on them
  std::optional<int> gpu;  // index in Machine::gpus
  std::string why;         // "its part of NUMA node 1, next to its GPU"
};

struct Placement {
  std::string
      policy;  // what was asked for and, where that left a choice, done: "--bind auto (numa)"
  std::vector<Seat> seats;
  std::vector<std::string> remarks;  // what the user would not expect
};

struct PlacementWish {
  BindPolicy policy = BindPolicy::kNone;
  std::string asked;  // option and word, for what is said of it: "--bind auto"
  int workers = 1;
};

// kInvalidArgument: the machine has not got what the policy needs (cores for core, GPUs for gpu); the
// caller adds the option's name.
Result<Placement> place_workers(const Machine& machine, const PlacementWish& command);

// Threads for each of so many workers that share these cores: at least 1.
constexpr int threads_of_each(int cores, int workers) {
  return cores > workers ? cores / workers : 1;
}

// The cores that are usable, with those of their threads that are.
std::vector<ProcessorCore> usable_cores(const Machine& machine);

// What was done, in one line: "--bind core: local rank 0 on CPUs 0-3; 1 on CPUs 4-7".
std::string describe(const Placement& placement);

}  // namespace ddprun
