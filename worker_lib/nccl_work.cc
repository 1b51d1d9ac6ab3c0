#include "worker_lib/nccl_work.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "worker_lib/error_bridge.h"
#include "worker_lib/nccl_communicator.h"
#include "worker_lib/nccl_pause.h"

namespace ddprun {

std::string to_text(const NcclCall& call) {
  std::string text = call.collective > 0
                         ? std::string("nccl ") + call.name + " #" + std::to_string(call.collective)
                         : "nccl call " + std::to_string(call.number) + ", " + call.name;
  if (call.elements > 0) {
    text += " of " + std::to_string(call.elements) + " " + c10::toString(call.type);
  }
  if (call.op) text += std::string(" (") + to_text(*call.op) + ")";
  if (call.peer >= 0) text += ", peer " + std::to_string(call.peer);
  return text;
}

void NcclWork::wait(std::optional<Duration> timeout) {
  if (stream_.is_captured) return join_capture();
  if (!timeout && host_wait_ == HostWait::kOnRequest && wait_on_stream()) return;
  const Deadline deadline(timeout.value_or(kLongestTimeout));
  NcclPause pause;
  while (!value_or_throw(poll())) {
    if (deadline.passed()) {
      throw to_dist_error(timeout_error("wait for " + to_text(call_), "it is not complete",
                                        deadline.waited(), deadline.allowed()));
    }
    pause.take();
  }
}

// Whether the current stream waits now. The caller's stream is the one that allocated the tensors,
// or has been told of it: once that stream waits for the call, memory that is let go of is not
// handed out again too early. On another stream it would be, so there the tensors are kept until
// the call is seen to be over.
bool NcclWork::wait_on_stream() {
  const std::lock_guard lock(mutex_);
  if (is_over_ || is_doomed_) return false;
  const CudaStream current = stream_.api.current_stream(stream_.device);
  const CudaResult waits = stream_.api.stream_wait_event(current, stream_.event);
  if (waits != CudaResult::kSuccess) {
    throw to_dist_error(cuda_error(stream_.api, "wait for " + to_text(call_), waits));
  }
  if (current == stream_.caller) keep_.clear();
  return true;
}

// Outside of the capture there is nothing to wait for: whoever runs the graph waits for that.
void NcclWork::join_capture() {
  const std::lock_guard lock(mutex_);
  const CudaStream current = stream_.api.current_stream(stream_.device);
  bool is_capturing = false;
  CudaResult done = stream_.api.stream_is_capturing(current, &is_capturing);
  if (done == CudaResult::kSuccess && is_capturing) {
    done = stream_.api.stream_wait_event(current, stream_.event);
  }
  if (done != CudaResult::kSuccess) {
    throw to_dist_error(cuda_error(stream_.api, "wait for " + to_text(call_), done));
  }
}

Result<bool> NcclWork::poll() {
  Callbacks then;
  Result<bool> is_over = poll(then);
  for (const auto& one : then) one();
  return is_over;
}

Result<bool> NcclWork::poll(Callbacks& then) {
  const std::lock_guard lock(mutex_);
  if (!is_over_ && !is_doomed_) {
    const CudaResult seen = stream_.api.event_query(stream_.event);
    if (seen == CudaResult::kSuccess) {
      finish(std::nullopt, then);
    } else if (seen != CudaResult::kNotReady) {
      finish(cuda_error(stream_.api, to_text(call_), seen), then);
    }
  }
  return failure_ ? Result<bool>(*failure_) : Result<bool>(is_over_);
}

void NcclWork::when_over(std::function<void()> then) {
  if (stream_.is_captured) join_capture();  // so that what it does is captured behind the call
  {
    const std::lock_guard lock(mutex_);
    if (!is_over_) return then_.push_back(std::move(then));
  }
  then();
}

bool NcclWork::is_completed() {
  const Result<bool> is_over = poll();
  return !is_over || *is_over;
}

std::exception_ptr NcclWork::exception() {
  const std::lock_guard lock(mutex_);
  return failure_ ? std::make_exception_ptr(to_dist_error(*failure_)) : nullptr;
}

bool NcclWork::has_succeeded() {
  const Result<bool> is_over = poll();
  return is_over && *is_over;
}

int NcclWork::source_rank() { return has_succeeded() ? call_.source : -1; }

void NcclWork::record(FlightTicket ticket) {
  const std::lock_guard lock(mutex_);
  if (is_over_) return ticket.end(failure_.has_value());
  tickets_.push_back(std::move(ticket));
}

void NcclWork::doom(std::vector<torch::Tensor>& keep) {
  const std::lock_guard lock(mutex_);
  is_doomed_ = true;
  keep.insert(keep.end(), keep_.begin(), keep_.end());
}

void NcclWork::fail(const Error& failure) {
  Callbacks then;
  {
    const std::lock_guard lock(mutex_);
    if (!is_over_) finish(failure, then);
  }
  for (const auto& one : then) one();
}

// then: gets what is to be called when the mutex is free. REQUIRES: mutex_ is held.
void NcclWork::finish(std::optional<Error> failure, Callbacks& then) {
  std::ranges::move(std::exchange(then_, {}), std::back_inserter(then));
  is_over_ = true;
  failure_ = std::move(failure);
  for (FlightTicket& ticket : tickets_) ticket.end(failure_.has_value());
  tickets_.clear();
  keep_.clear();
}

}  // namespace ddprun
