// JobView: what `ddprun top` shows of a job. A value type; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "rendezvous/protocol/core/progress.h"

namespace ddprun {

// TopRow: a rank. Fields that are not known have no value or are empty. Texts may be of workers,
// and hold any bytes.
struct TopRow {
  std::int64_t rank = 0;
  std::optional<std::int64_t> node, local_rank, pid, step, lag, memory_bytes, gpu_memory_bytes,
      gpu_own_memory_bytes, restarts;
  std::optional<double> steps_per_second, waiting_s, cpu_percent, gpu_percent;
  std::string host, state, collective, slow, limits;
};

struct JobView {
  std::string id;
  std::string phase;
  std::optional<std::int64_t> generation, restarts_used, max_restarts;
  // For how long the generation runs. No value: it does not run.
  std::optional<Duration> generation_age = {};
  Progress progress;         // of the foremost rank
  std::string goodput;       // a sentence
  std::string last_failure;  // why the last restart was needed
  std::string log_trouble;   // what is wrong with log files of nodes
  std::string outcome;       // how the job has ended; empty: it has not
  std::vector<TopRow> ranks;
  std::int64_t ranks_left_out = 0;  // for which there was no room
  std::size_t ranks_expected = 0;   // of the nodes that run now, as far as they can be shown
};

}  // namespace ddprun
