#include "worker_lib/nccl/work.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/concat.h"
#include "worker_lib/nccl/communicator.h"
#include "worker_lib/nccl/device_guard.h"
#include "worker_lib/util/error_bridge.h"
#include "worker_lib/util/nccl_pause.h"

namespace ddprun {

std::string to_text(const NcclCall& call) {
  std::string text = call.collective > 0 ? concat("nccl ", call.name, " #", call.collective)
                                         : concat("nccl call ", call.number, ", ", call.name);
  if (call.elements > 0) text += concat(" of ", call.elements, " ", c10::toString(call.type));
  if (call.op) text += concat(" (", to_text(*call.op), ")");
  if (call.peer >= 0) text += concat(", peer ", call.peer);
  return text;
}

Result<std::shared_ptr<NcclEvent>> NcclEvent::make(const NcclApi& api, int device) {
  CudaEvent made = nullptr;
  const CudaResult result = api.event_create(&made);
  if (result != CudaResult::kSuccess) return cuda_error(api, "make an event", result);
  return std::shared_ptr<NcclEvent>(new NcclEvent(api, device, made));
}

NcclEvent::~NcclEvent() {
  const DeviceGuard guard(api_, device_);
  api_.event_destroy(event_);
}

void NcclWork::wait(std::optional<Duration> timeout) {
  if (stream_.is_captured) return join_capture();
  if (!timeout && host_wait_ == HostWait::kOnRequest && wait_on_stream()) return;
  const Deadline deadline(timeout.value_or(kLongestTimeout));
  NcclPause pause;
  while (!value_or_throw(poll())) {
    if (deadline.passed()) {
      throw to_dist_error(
          timeout_error("wait for " + to_text(call_), "it is not complete", deadline));
    }
    pause.take();
  }
}

// Makes the current stream wait, and returns whether it waits now. The caller's stream allocated
// the tensors, or the caller called recordStream for them. Once that stream waits for the call,
// released memory is not reused too early. On another stream it could be, so there the tensors are
// kept until the call has been seen to end.
bool NcclWork::wait_on_stream() {
  std::shared_ptr<NcclEvent> event;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kInFlight) return false;
    event = stream_.event;
  }
  const DeviceGuard guard(stream_.api, stream_.device);
  const CudaStream current = stream_.api.current_stream(stream_.device);
  const CudaResult waits = stream_.api.stream_wait_event(current, event->get());
  if (waits != CudaResult::kSuccess) {
    throw to_dist_error(cuda_error(stream_.api, "wait for " + to_text(call_), waits));
  }
  std::vector<torch::Tensor> released_tensors;  // without the lock
  const std::lock_guard lock(mutex_);
  if (state_ == State::kAborting || state_ == State::kFailed) return false;
  if (current == stream_.caller) released_tensors.swap(keep_);
  return true;
}

// Outside the capture there is nothing to wait for: the program waits for the graph itself.
void NcclWork::join_capture() {
  const DeviceGuard guard(stream_.api, stream_.device);
  const CudaStream current = stream_.api.current_stream(stream_.device);
  bool is_capturing = false;
  CudaResult done = stream_.api.stream_is_capturing(current, &is_capturing);
  if (done == CudaResult::kSuccess && is_capturing) {
    done = stream_.api.stream_wait_event(current, stream_.event->get());
  }
  if (done != CudaResult::kSuccess) {
    throw to_dist_error(cuda_error(stream_.api, "wait for " + to_text(call_), done));
  }
}

Result<bool> NcclWork::poll() {
  Callbacks then;
  Result<bool> is_over = poll_collecting(then);
  for (const auto& one : then) one();
  return is_over;
}

// Queries the event without the lock. The query may block in the driver, and would then keep
// other threads from ending the call after they have given it up.
Result<bool> NcclWork::poll_collecting(Callbacks& then) {
  std::shared_ptr<NcclEvent> event;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kInFlight) return outcome();
    event = stream_.event;
  }
  CudaResult seen = CudaResult::kNotReady;
  {
    const DeviceGuard guard(stream_.api, stream_.device);
    seen = stream_.api.event_query(event->get());
  }
  std::vector<torch::Tensor> released_tensors;  // without the lock
  const std::lock_guard lock(mutex_);
  if (state_ == State::kInFlight && seen != CudaResult::kNotReady) {
    const bool has_come = seen == CudaResult::kSuccess;
    finish(has_come ? std::nullopt : std::optional(cuda_error(stream_.api, to_text(call_), seen)),
           then);
    released_tensors.swap(keep_);
  }
  return outcome();
}

// Returns whether the call has ended, or its failure. REQUIRES: mutex_ is held.
Result<bool> NcclWork::outcome() const {
  return state_ == State::kFailed ? Result<bool>(*failure_) : Result<bool>(state_ == State::kDone);
}

void NcclWork::when_over(std::function<void()> then) {
  if (stream_.is_captured) join_capture();  // so that the work of `then` is captured after the call
  {
    const std::lock_guard lock(mutex_);
    if (!has_ended()) return then_.push_back(std::move(then));
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

void NcclWork::record(FlightTicket ticket) {
  // The thread does not wait where only the stream does.
  ticket.blocks = ticket.blocks && host_wait_ == HostWait::kAlways;
  const std::lock_guard lock(mutex_);
  if (has_ended()) return ticket.end(failure_.has_value());
  tickets_.push_back(std::move(ticket));
}

void NcclWork::begin_abort(std::vector<torch::Tensor>& keep) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kInFlight) state_ = State::kAborting;
  keep.insert(keep.end(), keep_.begin(), keep_.end());
}

void NcclWork::fail(const Error& failure) {
  Callbacks then;
  std::vector<torch::Tensor> released_tensors;  // without the lock
  std::shared_ptr<NcclEvent> released_event;    // so is the event
  {
    const std::lock_guard lock(mutex_);
    released_event = stream_.event;
    if (!has_ended()) finish(failure, then);
    released_tensors.swap(keep_);
  }
  for (const auto& one : then) one();
}

// Ends the call. then: receives the callbacks, to run when the mutex is free. keep_ is left to
// the caller. REQUIRES: mutex_ is held.
void NcclWork::finish(std::optional<Error> failure, Callbacks& then) {
  std::ranges::move(std::exchange(then_, {}), std::back_inserter(then));
  state_ = failure ? State::kFailed : State::kDone;
  failure_ = std::move(failure);
  for (FlightTicket& ticket : tickets_) ticket.end(failure_.has_value());
  tickets_.clear();
  if (!stream_.is_captured) stream_.event = nullptr;
}

}  // namespace ddprun
