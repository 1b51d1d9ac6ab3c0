// What stands behind a Work: the state that the one who carries a call out shares with those who
// wait for it.
//
// Owned jointly by every Work of the call and by the backend while the call runs; it outlives the
// backend. Any thread.
#pragma once

#include <torch/types.h>

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

namespace detail {

class WorkState {
 public:
  virtual ~WorkState() = default;

  // Work::wait with and without a timeout: throws the failure, or kTimeout when `timeout` passes
  // first.
  virtual void wait(std::optional<Duration> timeout) = 0;
  virtual bool is_completed() = 0;
  virtual std::exception_ptr exception() = 0;
  // Of a receive that is complete; -1 otherwise.
  virtual int source_rank() = 0;
  // The flight record of the call, to be ended with it; at once where it is over. Call once at most.
  virtual void record(FlightTicket ticket) = 0;
  // Calls `then` once, when the call is over: on the thread that finds out, or at once. `then` must not
  // throw, nor wait for calls of the same group.
  virtual void when_over(std::function<void()> then) = 0;

  // What an asynchronous call writes, for its future. Set before anybody else has the Work.
  std::vector<torch::Tensor> outputs;
};

// The state of a call whose completion the host sees: complete() is called once, by whoever carried
// it out.
class HostWork final : public WorkState {
 public:
  HostWork() = default;

  // Ends the call, well or with an Error, and wakes all who wait. source_rank: of a receive.
  void complete(const Result<void>& result, int source_rank = -1);
  // The same; failure: an exception that those who wait are to get, or null.
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
  std::vector<std::function<void()>> then_;  // until it is over
  FlightTicket ticket_;
  bool is_completed_ = false;
  int source_rank_ = -1;
  std::exception_ptr failure_;
};

// A Work that is over already: complete, or failed with the Error.
Work work_of(const Result<void>& result);

}  // namespace detail
}  // namespace ddprun
