// Measures the nodes of a job over a group of all its ranks.
//
// Collective, on the thread of the group's calls. One rank of each node, the one with the lowest
// local rank, measures memory, GPUs and links.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "base/worker_env.h"
#include "worker_lib/bench/core/report.h"
#include "worker_lib/cpu_group/cpu_group.h"

namespace ddprun {

struct BenchOptions {
  std::uint64_t most_bytes = 64 << 20;  // of the largest all_reduce
  Duration timeout{};                   // of each call
};

// Fills the report on every rank. If a rank is lost or a call takes longer than the timeout,
// returns that error. Then the report has what was gathered before: without nodes nothing, else the
// links.
Result<void> measure_nodes(CpuGroup& group, const WorkerEnv& env, const std::string& host,
                           const BenchOptions& options, BenchReport& report);

}  // namespace ddprun
