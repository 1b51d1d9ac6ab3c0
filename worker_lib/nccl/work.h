// NcclWork: one call of the nccl backend in flight on its stream; the state of its Work.
//
// The first thread that looks sees that the event after the call has come: the watcher or a thread
// that waits. Any thread.
//
//   | State     | event comes   | begin_abort() | fail()   | record(), when_over()      |
//   | kInFlight | kDone (error: | kAborting     | kFailed  | kept until the call ends   |
//   |           | kFailed)      |               |          |                            |
//   | kAborting | not looked at | kAborting     | kFailed  | kept until the call ends   |
//   | kDone     | -             | kDone         | kDone    | carried out at once        |
//   | kFailed   | -             | kFailed       | kFailed  | carried out at once        |
//
// Invariants: failure_ has a value exactly in kFailed. In kDone and kFailed the work uses neither
// event nor stream, so it may outlive the backend, and it has neither tickets nor callbacks.
//
// Tensors, the event and callbacks are released or called without the lock: to release them may
// call CUDA, and a callback may call this work.
//
// A call that was captured into a CUDA graph begins in kDone: it runs when the graph runs, which
// cannot be observed here. Its event belongs to the capture and is never queried. wait() joins the
// current stream to it while that stream is captured.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "ddprun/reduce_op.h"
#include "worker_lib/group/work_state.h"
#include "worker_lib/nccl/api.h"

namespace ddprun {

// The description of a call; turned into text only when the call fails.
struct NcclCall {
  const char* name;
  std::uint64_t number = 0;      // of the call in its group, messages included, from 1
  std::uint64_t collective = 0;  // of the collective in its group, from 1; 0: a message
  std::int64_t elements = 0;
  torch::ScalarType type = torch::kUInt8;
  int peer = -1;    // root, source or destination
  int source = -1;  // of a receive
  std::optional<ReduceOp> op = std::nullopt;
};

// Returns a text such as "nccl all_reduce #12 of 1000 Float (sum)" or "nccl call 17, send of 1000
// Float, peer 2".
std::string to_text(const NcclCall& call);

// NcclEvent: a CUDA event of a device. Shared, because no lock is held while it is queried: a
// thread may still query it when the call has ended for the others. api outlives it.
class NcclEvent {
 public:
  static Result<std::shared_ptr<NcclEvent>> make(const NcclApi& api, int device);
  ~NcclEvent();
  NcclEvent(const NcclEvent&) = delete;
  NcclEvent& operator=(const NcclEvent&) = delete;

  CudaEvent get() const { return event_; }

 private:
  NcclEvent(const NcclApi& api, int device, CudaEvent event)
      : api_(api), device_(device), event_(event) {}

  const NcclApi& api_;
  const int device_;
  const CudaEvent event_;
};

class NcclWork final : public detail::WorkState {
 public:
  enum class HostWait {
    kOnRequest,  // wait() makes the current stream wait; the host waits only with a timeout
    kAlways,     // a barrier: wait() blocks the host
  };

  // Needed to query the event. api outlives it.
  struct Stream {
    const NcclApi& api;
    int device;
    CudaStream caller;                 // the current stream at the time of the call
    std::shared_ptr<NcclEvent> event;  // recorded after the call; released when that has ended
    bool is_captured = false;
  };

  NcclWork(const NcclCall& call, Stream stream, std::vector<torch::Tensor> keep, HostWait host_wait,
           const Deadline& deadline)
      : call_(call),
        deadline_(deadline),
        stream_(std::move(stream)),
        host_wait_(host_wait),
        keep_(std::move(keep)),
        state_(stream_.is_captured ? State::kDone : State::kInFlight) {}

  void wait(std::optional<Duration> timeout) override;
  bool is_completed() override;
  std::exception_ptr exception() override;
  int source_rank() override { return has_succeeded() ? call_.source : -1; }
  void record(FlightTicket ticket) override;
  void when_over(std::function<void()> then) override;

  bool has_succeeded();
  // Checks whether the call has ended. Returns its failure as the Error.
  Result<bool> poll();
  // Does what poll() does, but appends the callbacks of a call that has ended to `then`. The caller
  // runs them without locks.
  using Callbacks = std::vector<std::function<void()>>;
  Result<bool> poll_collecting(Callbacks& then);

  // Says that the communicator is being aborted. Then the event comes although the call was not
  // carried out, so only fail() ends the call. keep: receives the call's tensors, because a kernel
  // may still write to them.
  void begin_abort(std::vector<torch::Tensor>& keep);
  // Ends the call, if it has not ended.
  void fail(const Error& failure);

  const NcclCall& call() const { return call_; }
  const Deadline& deadline() const { return deadline_; }

 private:
  enum class State { kInFlight, kAborting, kDone, kFailed };

  bool wait_on_stream();
  void join_capture();
  bool has_ended() const { return state_ == State::kDone || state_ == State::kFailed; }
  Result<bool> outcome() const;
  void finish(std::optional<Error> failure, Callbacks& then);

  const NcclCall call_;
  const Deadline deadline_;
  Stream stream_;  // its event is guarded by mutex_
  const HostWait host_wait_;
  std::mutex mutex_;  // guards the following; never held while CUDA is called
  std::vector<torch::Tensor> keep_;
  State state_;
  std::optional<Error> failure_;
  std::vector<FlightTicket> tickets_;  // a batch has several
  Callbacks then_;                     // to call at the end
};

// NcclBatchPart: one message of a batch; it ends when the batch ends.
class NcclBatchPart final : public detail::WorkState {
 public:
  NcclBatchPart(std::shared_ptr<NcclWork> batch, int source)
      : batch_(std::move(batch)), source_(source) {}

  void wait(std::optional<Duration> timeout) override { batch_->wait(timeout); }
  bool is_completed() override { return batch_->is_completed(); }
  std::exception_ptr exception() override { return batch_->exception(); }
  int source_rank() override { return batch_->has_succeeded() ? source_ : -1; }
  void record(FlightTicket ticket) override { batch_->record(std::move(ticket)); }
  void when_over(std::function<void()> then) override { batch_->when_over(std::move(then)); }

 private:
  const std::shared_ptr<NcclWork> batch_;
  const int source_;  // -1: a send
};

}  // namespace ddprun
