// WorkerPages: the shared memory in which the workers of a generation say how far they are
// (base/worker_page.h). Workers open it through /proc, so that they inherit no descriptor.
//
// Owner: the agent, on its one thread; the workers write meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/worker_page.h"
#include "base/worker_page_file.h"
#include "launcher/hang/core/watch.h"

namespace ddprun {

class WorkerPages {
 public:
  // For so many workers, as if none had ever written. An error of the system's.
  static Result<WorkerPages> make(int workers);

  // What a worker of this process's user can open while this process lives.
  std::string path() const;

  const WorkerPage& operator[](int worker) const {
    return memory_.pages[static_cast<std::size_t>(worker)];
  }

  // What --hang-timeout goes by.
  PageSample sample_of(int worker) const;
  // The last step that the worker has reported; nullopt: none.
  std::optional<std::int64_t> step_of(int worker) const;
  // Whether the worker has said that it reached its end (WorkerPage::finished).
  bool has_finished(int worker) const;
  // The highest of all.
  std::optional<std::int64_t> highest_step() const;

 private:
  explicit WorkerPages(PageFile memory) : memory_(std::move(memory)) {}

  PageFile memory_;
};

}  // namespace ddprun
