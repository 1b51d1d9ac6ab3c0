// How the cpu backend carries tensors of other devices: their contents are copied to the host, the
// engine works there, and what it wrote is copied back.
//
// Copies go to streams of LibTorch's pool, one for each direction, behind what the caller's current
// stream has been given so far, and behind the results of the collective before: calls in flight may be
// about the same tensors. Long tensors go in pieces, so that one is on its way to the host, one in the
// engine and one on its way back at the same time. On CUDA the memory on the host is pinned. Written
// against what LibTorch says of every device that has streams, not against CUDA.
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

// Whether tensors on devices of this type can be staged: LibTorch has streams for it.
bool can_be_staged(torch::DeviceType type);

// What a call does with the tensors that it names as written.
struct StagedUse {
  bool is_read = false;     // they are inputs, too
  bool is_written = true;   // on this rank
  bool can_be_cut = false;  // every part of them can be carried for itself
};

// The tensors of one call on their way. Made by the calling thread, carried out by any one thread, waited
// for by any. All but the destructor may throw what LibTorch throws.
class StagedCall {
 public:
  // All on one device. There is at least one tensor.
  StagedCall(TensorList written, TensorList read, StagedUse use);

  // Comes when the results are on the device; is never recorded where the call fails.
  using Results = std::shared_ptr<const c10::Event>;
  Results results() const { return results_; }

  // What is read begins its way, behind these results of a call that the engine has done; null: of none.
  // Any one thread.
  void fetch(const Results& before);

  // For each piece: waits for what is read, lets the engine work on the host's side of it, and puts what
  // was written on its way back. The failure of the group, or a deadline that passes, ends the wait.
  using EngineCall =
      std::function<Result<void>(TensorList written, TensorList read, Duration timeout)>;
  Result<void> carry_out(const CpuGroup& group, const EngineCall& engine_call,
                         const Deadline& deadline);

  // The steps of it, where there is one piece.
  Result<void> await_read(const CpuGroup& group, const Deadline& deadline);
  TensorList host_written() const { return pieces_.front().host_written; }
  TensorList host_read() const { return pieces_.front().host_read; }
  void give_back();

  // Behind carry_out() or give_back(): what the calling thread's current stream is given from now on sees
  // the results.
  void hold_back_current_stream() const;
  // Whether the results are there.
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
  std::vector<Piece> pieces_;  // until the call is over
  const std::shared_ptr<c10::Event> results_;
};

// The Work of a call whose host part is `host`: it is complete when the results are on the device.
Work staged_work(std::shared_ptr<detail::WorkState> host, std::shared_ptr<StagedCall> call);

}  // namespace ddprun
