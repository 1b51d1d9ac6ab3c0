// Staging: how the cpu backend carries tensors of other devices. Their contents are copied to
// the host, the engine works there, and the results are copied back.
//
// Copies run on streams of LibTorch's pool, one for each direction. They wait for the present
// work of the caller's current stream. They also wait for the results of the previous
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

// How a call uses the tensors that it names as written.
struct StagedUse {
  bool is_read = false;     // they are inputs, too
  bool is_written = true;   // on this rank
  bool can_be_cut = false;  // each part of them can be carried separately
};

// StagedCall: the tensors of one call, while they are copied. The calling thread makes it, any
// one thread carries it out, and any thread may wait for it. All functions except the destructor
// may throw what LibTorch throws.
class StagedCall {
 public:
  // All tensors are on one device. There is at least one.
  StagedCall(TensorList written, TensorList read, StagedUse use);

  // The event comes when the results are on the device. It is never recorded if the call fails.
  using Results = std::shared_ptr<const c10::Event>;
  Results results() const { return results_; }

  // Starts the copies of what is read, after these results of a call that the engine has
  // finished; null: after none. Any one thread.
  void fetch(const Results& before);

  // For each piece: waits for the tensors that are read, calls the engine on the host's copies,
  // and starts the copy of the results to the device. A failure of the group or a passed
  // deadline ends the wait.
  using EngineCall =
      std::function<Result<void>(TensorList written, TensorList read, Duration timeout)>;
  Result<void> carry_out(const CpuGroup& group, const EngineCall& engine_call,
                         const Deadline& deadline);

  // The steps of carry_out(), for a call of one piece.
  Result<void> await_read(const CpuGroup& group, const Deadline& deadline);
  TensorList host_written() const { return pieces_.front().host_written; }
  TensorList host_read() const { return pieces_.front().host_read; }
  void give_back();

  // After carry_out() or give_back(): makes later work of the calling thread's current stream
  // see the results.
  void hold_back_current_stream() const;
  // Returns whether the results are there.
  bool has_results() const { return results_->query(); }

 private:
  struct Piece {
    std::vector<torch::Tensor> written;  // on the device
    std::vector<torch::Tensor> read;
    std::vector<torch::Tensor> host_written;
    std::vector<torch::Tensor> host_read;
    c10::Event is_on_host;
  };
  void cut_into_pieces(TensorList written, TensorList read);
  void give_back(const Piece& piece);
  Result<void> await_piece(const Piece& piece, const CpuGroup& group,
                           const Deadline& deadline) const;
  void end();

  const torch::Device device_;
  const StagedUse use_;
  const c10::Stream inward_;   // to the host
  const c10::Stream outward_;  // from it
  std::vector<Piece> pieces_;  // until the call has ended
  const std::shared_ptr<c10::Event> results_;
};

// Makes the Work of a call whose host part is `host`. It completes when the results are on the
// device.
Work staged_work(std::shared_ptr<detail::WorkState> host, std::shared_ptr<StagedCall> call);

}  // namespace ddprun
