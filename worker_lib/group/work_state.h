// WorkState: the state of a Work. The thread that carries out a call shares it with the threads
// that wait for the call.
//
// Owned jointly by every Work of the call and, while the call runs, by the backend. It outlives
// the backend. Any thread.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "ddprun/work.h"
#include "worker_lib/flight/worker_reporter.h"

namespace ddprun {

// How long an aborted call may take to report its reason.
inline constexpr auto kTimeToFail = std::chrono::seconds(10);

namespace detail {

class WorkState {
 public:
  virtual ~WorkState() = default;

  // Implements Work::wait with and without a timeout. Throws the failure, or kTimeout when
  // `timeout` passes first.
  virtual void wait(std::optional<Duration> timeout) = 0;
  virtual bool is_completed() = 0;
  virtual std::exception_ptr exception() = 0;
  // Returns the sender of a receive that is complete; otherwise -1.
  virtual int source_rank() = 0;
  // Sets the flight record of the call, which ends with the call; at once if the call has ended.
  // Call it at most once.
  virtual void record(FlightTicket ticket) = 0;
  // Calls `then` once, when the call has ended: on the thread that detects the end, or at once.
  // `then` must neither throw nor wait for calls of the same group.
  virtual void when_over(std::function<void()> then) = 0;

  // The tensors that an asynchronous call writes, for its future. Set before another thread has
  // the Work.
  std::vector<torch::Tensor> outputs;
};

// HostWork: the state of a call whose completion the host sees. The thread that carried the call
// out calls complete() once.
class HostWork final : public WorkState {
 public:
  HostWork() = default;

  // Ends the call with success or with an Error, and wakes all waiting threads. source_rank: for
  // a receive.
  void complete(const Result<void>& result, int source_rank = -1);
  // Ends the call as complete() does. failure: the exception for the waiting threads, or null.
  void end(std::exception_ptr failure, int source_rank = -1);

  void wait(std::optional<Duration> timeout) override;
  bool is_completed() override;
  std::exception_ptr exception() override;
  int source_rank() override;
  void record(FlightTicket ticket) override;
  void when_over(std::function<void()> then) override;

 private:
  std::mutex mutex_;
  std::condition_variable completed_;
  std::vector<std::function<void()>> then_;  // to call at the end
  FlightTicket ticket_;
  bool is_completed_ = false;
  int source_rank_ = -1;
  std::exception_ptr failure_;
};

// Returns a Work that has ended: complete, or failed with the Error.
Work work_of(const Result<void>& result);

}  // namespace detail
}  // namespace ddprun
