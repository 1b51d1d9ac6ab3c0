// Placement: decides which CPUs each worker of a node may run on, and how many threads it
// should start.
//
// The policy comes from --bind or from torchrun's --numa-binding:
//   none          every worker runs on all CPUs of the agent
//   core          the usable cores in equal parts, whatever NUMA nodes they belong to
//   numa          each worker stays in one NUMA node; the workers of one node divide its cores
//   gpu           as numa, in the NUMA node next to the worker's GPU
//   auto          gpu if there are GPUs; otherwise numa, or core if there are fewer workers than
//                 NUMA nodes; torchrun's `exclusive`
//   node, socket  torchrun's: all of the NUMA node, or package, next to the GPU, shared by the
//                 workers that have the same one
//   core-complex  torchrun's: one last-level cache of that NUMA node
//
// A worker's home is the NUMA node that it belongs to. It is the node of its GPU. Without a
// GPU, it is the node that then has the most cores for each of its workers, so that the slowest
// worker is as fast as possible.
//
// A core is never split: all its hardware threads go to one worker. With core, numa, gpu and
// auto, two workers share no CPU unless a NUMA node has more workers than cores. Then its
// workers share all of it, and a remark says so. core fails instead if there are more workers
// than cores.
//
// Pure; any thread. Machine comes from launcher/machine/topology.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "base/result.h"
#include "launcher/machine/core/cpu_set.h"

namespace ddprun {

enum class BindPolicy { kNone, kAuto, kCore, kNuma, kGpu, kNode, kSocket, kCoreComplex };

// The words of --bind.
inline constexpr EnumNames<BindPolicy, 5> kBindWords{{
    {BindPolicy::kNone, "none"},
    {BindPolicy::kAuto, "auto"},
    {BindPolicy::kCore, "core"},
    {BindPolicy::kNuma, "numa"},
    {BindPolicy::kGpu, "gpu"},
}};
// The words of --numa-binding.
inline constexpr EnumNames<BindPolicy, 4> kNumaBindingWords{{
    {BindPolicy::kNode, "node"},
    {BindPolicy::kSocket, "socket"},
    {BindPolicy::kAuto, "exclusive"},
    {BindPolicy::kCoreComplex, "core-complex"},
}};

struct ProcessorCore {
  int package = 0;
  int numa_node = 0;  // the kernel's number
  int cache = 0;      // last-level cache, numbered over the whole machine
  CpuSet cpus;        // its hardware threads
};

struct GpuPlace {
  std::string name;    // as CUDA_VISIBLE_DEVICES names it
  std::string bus_id;  // "0000:3b:00.0"; empty: not known
  CpuSet near;         // the CPUs that are nearest to it; empty: not known
};

struct Machine {
  std::vector<ProcessorCore> cores;  // all cores, grouped by NUMA node and cache
  std::vector<GpuPlace> gpus;        // those that workers see; worker i gets the i-th
  CpuSet usable;                     // the CPUs that this process may run on
};

// Seat: the place of one worker. Seats are indexed by local rank.
struct Seat {
  CpuSet cpus;             // empty: the worker is not bound
  int cores = 0;           // number of cores in `cpus`
  int threads = 1;         // for OMP_NUM_THREADS: cores divided by the workers that run on them
  std::optional<int> gpu;  // index in Machine::gpus
  std::string why;         // "its part of NUMA node 1, next to its GPU"
};

struct Placement {
  std::string
      policy;  // what was asked for and, where that left a choice, done: "--bind auto (numa)"
  std::vector<Seat> seats;
  std::vector<std::string> remarks;  // facts that the user would not expect
};

struct PlacementRequest {
  BindPolicy policy = BindPolicy::kNone;
  std::string asked;  // option and word, for messages: "--bind auto"
  int workers = 1;
};

// Places the workers. kInvalidArgument: the machine lacks what the policy needs (cores for
// core, GPUs for gpu); the caller adds the option's name.
Result<Placement> place_workers(const Machine& machine, const PlacementRequest& request);

// Returns the number of threads for each worker when `workers` share `cores`: at least 1.
constexpr int threads_of_each(int cores, int workers) {
  return cores > workers ? cores / workers : 1;
}

// Returns the usable cores, each with only its usable hardware threads.
std::vector<ProcessorCore> usable_cores(const Machine& machine);

// Returns the placement in one line: "--bind core: local rank 0 on CPUs 0-3; 1 on CPUs 4-7".
std::string describe(const Placement& placement);

}  // namespace ddprun
