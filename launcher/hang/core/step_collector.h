// StepCollector: joins the steps that the workers of this node have reported into steps of all of
// them, for a StepReport.
//
// A worker's own time in a step is the time between two reports without the time that it was
// blocked in calls into groups. Pages keep the last kStepMarks reports. Between two calls, more
// steps may have been done; those are left out.
//
// Owner: StatusReporter, on its thread, while a generation runs. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/worker_page.h"
#include "rendezvous/protocol/core/step_report.h"

namespace ddprun {

class StepCollector {
 public:
  // Begins a generation.
  void begin() { last_taken_ = 0; }

  // Returns the newest steps that were not returned before, at most `most`. marks: the last reports
  // of each worker, in their order. Empty also if a worker has none.
  std::vector<StepTimes> take(const std::vector<std::vector<StepEntry>>& marks, std::size_t most);

 private:
  std::uint64_t last_taken_ = 0;  // the number of the report of worker 0
};

}  // namespace ddprun
