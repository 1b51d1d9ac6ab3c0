// WorkerPages: the shared memory in which the workers of a generation say how far they are
// (base/worker_page.h). It is a memory file: no name in the file system, nothing to leave behind.
// Workers open it through /proc, so that they inherit no descriptor.
//
// Owner: the agent, on its one thread; the workers write meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "base/worker_page.h"
#include "launcher/core/hang_watch.h"

namespace ddprun {

class WorkerPages {
 public:
  // For so many workers, as if none had ever written. An error of the system's.
  static Result<WorkerPages> make(int workers);

  WorkerPages(WorkerPages&& other) noexcept;
  WorkerPages& operator=(WorkerPages&& other) noexcept;
  ~WorkerPages();

  // What a worker of this process's user can open while this process lives.
  std::string path() const;
  static std::size_t offset_of(int worker) {
    return static_cast<std::size_t>(worker) * kWorkerPageBytes;
  }

  const WorkerPage& operator[](int worker) const { return pages_[worker]; }

  // What --hang-timeout goes by.
  PageSample sample_of(int worker) const;
  // The last step that the worker has reported; nullopt: none.
  std::optional<std::int64_t> step_of(int worker) const;
  // The highest of all.
  std::optional<std::int64_t> highest_step() const;

 private:
  WorkerPages(UniqueFd file, WorkerPage* pages, int count)
      : file_(std::move(file)), pages_(pages), count_(count) {}

  UniqueFd file_;
  WorkerPage* pages_;  // mapped; null: moved from
  int count_;
};

}  // namespace ddprun
