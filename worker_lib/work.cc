#include "ddprun/work.h"

#include "base/deadline.h"
#include "worker_lib/error_bridge.h"
#include "worker_lib/work_state.h"

namespace ddprun {

Work::Work() = default;

Work::Work(std::shared_ptr<detail::WorkState> state) : state_(std::move(state)) {}

void Work::wait() const {
  if (state_) state_->wait(std::nullopt);
}

void Work::wait(std::chrono::nanoseconds timeout) const {
  if (state_) state_->wait(timeout);
}

bool Work::is_completed() const { return !state_ || state_->is_completed(); }

int Work::source_rank() const { return state_ ? state_->source_rank() : -1; }

std::exception_ptr Work::exception() const { return state_ ? state_->exception() : nullptr; }

namespace detail {

void HostWork::complete(const Result<void>& result, int source_rank) {
  const std::lock_guard lock(mutex_);
  DDPRUN_ASSERT(!is_completed_, "a call completes once");
  is_completed_ = true;
  source_rank_ = source_rank;
  if (!result) failure_ = std::make_exception_ptr(to_dist_error(result.error()));
  ticket_.end(!result);
  completed_.notify_all();
}

void HostWork::wait(std::optional<Duration> timeout) {
  std::unique_lock lock(mutex_);
  const auto is_over = [this] { return is_completed_; };
  if (!timeout) {
    completed_.wait(lock, is_over);
  } else {
    // A Deadline's time: now plus the largest duration would lie in the past.
    const Deadline deadline(*timeout);
    if (!completed_.wait_for(lock, deadline.remaining(), is_over)) {
      throw to_dist_error(timeout_error("wait for a collective", "it is not complete",
                                        deadline.waited(), deadline.allowed()));
    }
  }
  if (failure_) std::rethrow_exception(failure_);
}

bool HostWork::is_completed() {
  const std::lock_guard lock(mutex_);
  return is_completed_;
}

std::exception_ptr HostWork::exception() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

int HostWork::source_rank() {
  const std::lock_guard lock(mutex_);
  return source_rank_;
}

void HostWork::record(FlightTicket ticket) {
  const std::lock_guard lock(mutex_);
  ticket_ = std::move(ticket);
  if (is_completed_) ticket_.end(failure_ != nullptr);
}

Work work_of(const Result<void>& result) {
  if (result) return Work();
  auto state = std::make_shared<HostWork>();
  state->complete(result);
  return Work(std::move(state));
}

}  // namespace detail
}  // namespace ddprun
