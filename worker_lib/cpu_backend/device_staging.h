// StagedCall: runs a collective of the cpu backend on tensors of another device. It copies them
// to the host, calls the engine there, and copies the results back.
//
// Copies run on streams of LibTorch's pool, one for each direction. They begin after the work
// already queued on the caller's current stream. They also wait for the results of the previous
// collective, because calls in flight may use the same tensors. Long tensors are split into
// pieces. So at the same time one piece is copied to the host, one is in the engine and one is
// copied back. On CUDA the host memory is pinned. The code uses LibTorch's interface for every
// device with streams, not CUDA.
#pragma once

#include <c10/core/Event.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "ddprun/backend.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/group/work_state.h"

namespace ddprun {

// Returns whether tensors on devices of this type can be staged: LibTorch must have streams for
// it.
bool can_be_staged(torch::DeviceType type);

// How a call uses its written tensors.
struct StagedAccess {
  bool reads_written = false;  // they are inputs, too
  bool writes_on_this_rank = true;
  bool can_be_cut = false;  // each part of them can be carried separately
};

//   StagedCall call(written, read, access);     // calling thread
//   call.start_copy_to_host(previous_results);  // calling thread or worker
//   call.run(group, engine_call, deadline);     // worker: per piece wait, engine, copy back
//   call.make_current_stream_wait();            // the user of the results
//
// Any thread may wait for the results. All functions except the destructor may throw what
// LibTorch throws.
class StagedCall {
 public:
  // All tensors are on one device. There is at least one.
  StagedCall(TensorList written, TensorList read, StagedAccess access);

  // Completes when the results are on the device. Not recorded if the call fails.
  using ResultsEvent = std::shared_ptr<const c10::Event>;
  ResultsEvent results() const { return results_ready_; }

  // Starts the copies to the host. previous: the results of an earlier call that the engine has
  // finished, which the copies wait for; null: none. Call once, on any thread.
  void start_copy_to_host(const ResultsEvent& previous);

  // For each piece: waits for the tensors that are read, calls the engine on the host's copies,
  // and starts the copy of the results to the device. A failure of the group or a passed
  // deadline ends the wait.
  using EngineCall =
      std::function<Result<void>(TensorList written, TensorList read, Duration timeout)>;
  Result<void> run(const CpuGroup& group, const EngineCall& engine_call, const Deadline& deadline);

  // Replace run() for a call of one piece that reads nothing: the memory to fill, and its copy to
  // the device.
  TensorList host_written() const { return pieces_.front().host_written; }
  void start_copy_to_device();

  // Makes later work of the calling thread's current stream wait for the results. Call it after
  // run() or start_copy_to_device().
  void make_current_stream_wait() const;
  // Returns whether the results are there.
  bool has_results() const { return results_ready_->query(); }

 private:
  struct Piece {
    explicit Piece(torch::DeviceType type) : is_on_host(type) {}

    std::vector<torch::Tensor> written;  // on the device
    std::vector<torch::Tensor> read;
    std::vector<torch::Tensor> host_written;
    std::vector<torch::Tensor> host_read;
    c10::Event is_on_host;
  };
  void cut_into_pieces(TensorList written, TensorList read);
  void start_copy_to_device(const Piece& piece);
  Result<void> wait_for_piece(const Piece& piece, const CpuGroup& group,
                              const Deadline& deadline) const;
  void record_results();

  const torch::Device device_;
  const StagedAccess access_;
  const c10::Stream to_host_;
  const c10::Stream to_device_;
  std::vector<Piece> pieces_;  // until the call has ended
  const std::shared_ptr<c10::Event> results_ready_;
};

// Makes the Work of a call whose host part is `host`. It completes when the results are on the
// device.
Work staged_work(std::shared_ptr<detail::WorkState> host, std::shared_ptr<StagedCall> call);

}  // namespace ddprun
