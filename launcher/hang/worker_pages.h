// WorkerPages: the shared memory in which the workers of a generation report their progress
// (base/worker_page.h). Workers open it through /proc, so they inherit no descriptor.
//
// Owner: NodeWorkers, on the agent's one thread. The workers write to it at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/worker_page.h"
#include "base/worker_page_file.h"
#include "launcher/hang/core/watch.h"
#include "rendezvous/protocol/core/job_times.h"

namespace ddprun {

class WorkerPages {
 public:
  // Makes empty pages for this many workers. Returns the error of the failed system call.
  static Result<WorkerPages> make(int workers);

  // Returns a path that a worker of the same user can open while this process lives.
  std::string path() const;

  const WorkerPage& operator[](int worker) const {
    return memory_.pages[static_cast<std::size_t>(worker)];
  }

  // Returns the values by which --hang-timeout decides.
  PageSample sample_of(int worker) const;
  // Returns the last step that the worker has reported; nullopt: none.
  std::optional<std::int64_t> step_of(int worker) const;
  // Returns the last reports of a step that are kept, in their order.
  std::vector<StepEntry> marks_of(int worker) const;
  // Returns whether the worker has reported that it reached its end (WorkerPage::finished).
  bool has_finished(int worker) const;
  // Returns the highest step of all workers; nullopt: no worker has reported one.
  std::optional<std::int64_t> highest_step() const;
  // Returns how the time of the workers divides: the first step of any worker, and the longest
  // wait for checkpoints.
  WorkTimes times(TimePoint now) const;

 private:
  explicit WorkerPages(PageFile memory) : memory_(std::move(memory)) {}

  PageFile memory_;
};

}  // namespace ddprun
