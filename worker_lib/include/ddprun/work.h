// Work: the handle of a collective that was issued.
//
// It is a cheap, copyable handle on shared state. Any thread may use it. A Work may be dropped
// without waiting: the collective still happens, in its order. The destructor of its group waits
// for it, for at most 5 s, unless an exception is propagating.
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
  // Makes a Work that is complete.
  Work();
  explicit Work(std::shared_ptr<detail::WorkState> state);

  // Returns when the collective is complete and its tensors hold the result. (For CUDA tensors:
  // the current stream will wait for the result.) Throws DistError if the collective failed.
  void wait() const;

  // Waits as wait() does, for at most this time. Throws kTimeout if the collective is not complete
  // by then; this does not end the collective.
  void wait(std::chrono::nanoseconds timeout) const;

  // Returns whether it has succeeded or failed. Never blocks.
  bool is_completed() const;

  // Returns the rank that sent the message, for a receive that is complete; otherwise -1.
  int source_rank() const;

  // Returns the reason of the failure; null while it runs and when it has succeeded.
  std::exception_ptr exception() const;

  // Returns LibTorch's future, to continue after completion without waiting:
  // work.future()->then(...). Its value is the list of tensors that the call writes on this
  // rank, in the order of the arguments. The list is empty for a call that was not asynchronous.
  // Its error is the DistError. Callbacks run on a thread of ddprun (on CUDA with a current
  // stream that sees the results). They must not wait for calls of the same group.
  c10::intrusive_ptr<c10::ivalue::Future> future() const;

 private:
  friend class ProcessGroup;
  std::shared_ptr<detail::WorkState> state_;
};

// PendingWork: sets the result of a Work, for backends that a program implements (backend.h).
// The code that carries out a call keeps it and reports once how the call has ended. The backend
// returns `work()`. Cheap to copy; any thread.
//
//   PendingWork call;
//   queue.push([=] {
//     failed ? call.fail(DistError(DistError::Kind::kSystem, "...")) : call.complete();
//   });
//   return call.work();
class PendingWork {
 public:
  PendingWork();
  Work work() const;
  // End the call. Exactly one of complete() and fail() must be called, once. A second call
  // breaks a promise and ends the program. Without any call the Work never completes.
  // source_rank: for a receive, the rank that sent.
  void complete(int source_rank = -1) const;
  void fail(const DistError& error) const;

 private:
  std::shared_ptr<detail::HostWork> state_;
};

}  // namespace ddprun
