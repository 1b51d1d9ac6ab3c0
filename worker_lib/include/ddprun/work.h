// Work: the handle of a collective that was issued.
//
// A cheap, copyable handle on shared state; any thread may use it. Throwing a Work away without
// waiting is safe: the collective still happens, in its turn. The end of its group waits for it, for 5 s
// at most, unless an exception passes.
#pragma once

#include <ATen/core/ivalue.h>

#include <chrono>
#include <exception>
#include <memory>

namespace ddprun {

class DistError;

namespace detail {
class HostWork;
class WorkState;
}  // namespace detail

class Work {
 public:
  // A Work that is complete.
  Work();
  explicit Work(std::shared_ptr<detail::WorkState> state);

  // Returns when the collective is complete: its tensors hold the result (for CUDA tensors: the
  // current stream will wait for it). Throws DistError if it failed.
  void wait() const;

  // The same, at most this long: kTimeout if it is not complete by then, which does not end it.
  void wait(std::chrono::nanoseconds timeout) const;

  // Complete, well or badly. Never blocks.
  bool is_completed() const;

  // Of a receive that is complete: the rank that sent the message. -1 otherwise.
  int source_rank() const;

  // Why it failed; null while it runs and when it succeeded.
  std::exception_ptr exception() const;

  // LibTorch's way to go on when it is over without waiting for it: work.future()->then(...). Its value is
  // the list of tensors that the call writes on this rank, in the order of the arguments (empty for a call
  // that was not asynchronous), its error the DistError. Callbacks run on a thread of ddprun's (on CUDA with
  // a current stream that sees the results) and must not wait for calls of the same group.
  c10::intrusive_ptr<c10::ivalue::Future> future() const;

 private:
  friend class ProcessGroup;
  std::shared_ptr<detail::WorkState> state_;
};

// The other side of a Work, for backends of one's own (backend.h): who carries a call out keeps it and
// says once how the call has ended; `work()` is what the backend returns. Cheap to copy; any thread.
//
//   PendingWork call;
//   queue.push([=] { failed ? call.fail(DistError(DistError::Kind::kSystem, "...")) : call.complete(); });
//   return call.work();
class PendingWork {
 public:
  PendingWork();
  Work work() const;
  // source_rank: of a receive, who sent. Of complete() and fail() one is called, once: again is a broken
  // promise that ends the program. A Work of which neither is ever called is never over.
  void complete(int source_rank = -1) const;
  void fail(const DistError& error) const;

 private:
  std::shared_ptr<detail::HostWork> state_;
};

}  // namespace ddprun
