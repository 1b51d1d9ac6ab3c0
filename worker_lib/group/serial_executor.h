// SerialExecutor: runs the asynchronous calls of one group one after the other, in the order in
// which they were submitted.
//
// Owned by a backend. One thread at a time submits. The executor's own thread runs the calls.
// The first submit() starts it, so a program that makes only blocking calls has no such thread.
// A caller that finds the executor idle may do its work in its own thread, which saves two
// context switches. Nothing can be submitted meanwhile.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "base/task_queue.h"
#include "worker_lib/group/work_state.h"

namespace ddprun {

class SerialExecutor {
 public:
  using Call = std::function<Result<void>()>;  // must not throw

  // Maximum number of waiting calls. If it is reached, submit() waits for room. Each call ends
  // by its own deadline, so that wait ends, too.
  static constexpr std::size_t kMaxWaiting = 1024;

  // thread_name: at most 15 characters, shown by debuggers. The destructor returns when every
  // submitted call has run. To make them end soon, abort the engine before.
  explicit SerialExecutor(std::string thread_name) : queue_(std::move(thread_name), kMaxWaiting) {}

  // Returns whether no call waits or runs. The effects of the last call are then visible to the
  // caller.
  bool is_idle() const { return unfinished_.load(std::memory_order_acquire) == 0; }
  // Waits until the executor is idle, for at most `patience`. Nothing may be submitted
  // meanwhile.
  void await_idle(Duration patience) {
    if (!is_idle()) queue_.await_idle(patience);
  }

  // Queues the call. The state completes with its result, after the call and everything that it
  // holds are destroyed.
  std::shared_ptr<detail::HostWork> submit(Call call);

 private:
  std::atomic<int> unfinished_ = 0;  // waiting and running
  TaskQueue queue_;                  // ends first: its tasks count down
};

}  // namespace ddprun
