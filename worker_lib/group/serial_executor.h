// SerialExecutor: carries the asynchronous calls of one group out, one after the other, in the
// order in which they were submitted.
//
// Owned by a backend. One thread at a time submits; the executor's own thread runs the calls. It is
// started by the first submit(), so that a program which only makes blocking calls has no thread of
// ours. A caller that finds the executor idle may do its work itself, in its own thread, which
// saves the two switches: nothing can be submitted meanwhile.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "worker_lib/group/work_state.h"

namespace ddprun {

class SerialExecutor {
 public:
  using Call = std::function<Result<void>()>;  // must not throw

  // So many calls may wait; one more makes submit() wait for room. Each call ends by its own
  // deadline, so that wait ends, too.
  static constexpr std::size_t kMaxWaiting = 1024;

  // thread_name: at most 15 characters, shown by debuggers.
  explicit SerialExecutor(std::string thread_name) : thread_name_(std::move(thread_name)) {}

  // Returns when every submitted call has run: make them end soon before (abort the engine).
  ~SerialExecutor();

  // No call waits or runs. What the last one did is visible to the caller.
  bool is_idle() const { return unfinished_.load(std::memory_order_acquire) == 0; }
  // Waits until it is, at most so long. Nothing may be submitted meanwhile.
  void await_idle(Duration patience);

  // Queues the call; the state completes with its result, after the call and all it holds are gone.
  std::shared_ptr<detail::HostWork> submit(Call call);

 private:
  struct Entry {
    Call call;
    std::shared_ptr<detail::HostWork> work;
  };

  void run();
  void carry_out(Entry entry);

  const std::string thread_name_;
  std::mutex mutex_;
  std::condition_variable changed_;  // an entry came, went or is over, or closing_
  std::deque<Entry> waiting_;
  bool closing_ = false;
  std::atomic<int> unfinished_ = 0;  // waiting and running; also read without the mutex
  std::thread thread_;
};

}  // namespace ddprun
