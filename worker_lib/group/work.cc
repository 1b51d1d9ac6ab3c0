#include "ddprun/work.h"

#include "base/deadline.h"
#include "worker_lib/group/work_state.h"
#include "worker_lib/util/error_bridge.h"

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

c10::intrusive_ptr<c10::ivalue::Future> Work::future() const {
  const std::vector<torch::Tensor> outputs =
      state_ ? state_->outputs : std::vector<torch::Tensor>();
  std::vector<torch::Device> devices;
  if (!outputs.empty() && !outputs[0].is_cpu()) devices.push_back(outputs[0].device());
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::move(devices));
  const auto end = [future, outputs, state = state_] {
    const std::exception_ptr failure = state ? state->exception() : nullptr;
    if (failure) {
      future->setError(failure);
    } else {
      future->markCompleted(c10::List<torch::Tensor>(outputs));
    }
  };
  if (state_) {
    state_->when_over(end);
  } else {
    end();
  }
  return future;
}

PendingWork::PendingWork() : state_(std::make_shared<detail::HostWork>()) {}

Work PendingWork::work() const { return Work(state_); }

void PendingWork::complete(int source_rank) const { state_->end(nullptr, source_rank); }

void PendingWork::fail(const DistError& error) const {
  state_->end(std::make_exception_ptr(error));
}

namespace detail {

void HostWork::complete(const Result<void>& result, int source_rank) {
  end(result ? nullptr : std::make_exception_ptr(to_dist_error(result.error())), source_rank);
}

void HostWork::end(std::exception_ptr failure, int source_rank) {
  std::vector<std::function<void()>> then;
  {
    const std::lock_guard lock(mutex_);
    DDPRUN_ASSERT(!is_completed_, "a call completes once");
    is_completed_ = true;
    source_rank_ = source_rank;
    failure_ = std::move(failure);
    ticket_.end(failure_ != nullptr);
    completed_.notify_all();
    then.swap(then_);
  }
  for (const std::function<void()>& one : then) one();
}

void HostWork::when_over(std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_completed_) return then_.push_back(std::move(then));
  }
  then();
}

void HostWork::wait(std::optional<Duration> timeout) {
  std::unique_lock lock(mutex_);
  // The ticket drops its reporter when the call ends. The end of a blocking call reports its time.
  const std::shared_ptr<WorkerReporter> reporter = ticket_.blocks ? nullptr : ticket_.reporter;
  const BlockedTime blocked(reporter.get());
  const auto is_over = [this] { return is_completed_; };
  if (!timeout) {
    completed_.wait(lock, is_over);
  } else {
    // Uses a Deadline, because now plus the largest duration would overflow into the past.
    const Deadline deadline(*timeout);
    if (!completed_.wait_for(lock, deadline.remaining(), is_over)) {
      const std::string what =
          ticket_.facts.call == FlightCall::kNone ? "a call" : numbered_words_of(ticket_.facts);
      throw to_dist_error(timeout_error("wait for " + what, "it is not complete", deadline));
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
