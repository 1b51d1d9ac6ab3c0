// NcclBackend: the nccl backend of a ProcessGroup. It uses only the table of api.h. It builds
// the calls, and NcclEngine carries them out.
//
// Every collective runs on a stream of the backend, one for each device that the rank uses.
// There it waits for the work that is already on the caller's current stream. Work::wait() makes
// the caller's stream wait for the collective. The host waits for neither. Only three things
// block the host: a barrier's wait, a wait with a timeout, and the first call on a device, which
// makes a communicator.
//
// The peers are a CpuGroup of the same ranks that makes no calls. NCCL does not notice a dead
// rank, or does not name it; the peers' watch does so within 1 s. NCCL does not notice ranks
// that call different collectives either. The engine compares the calls of the ranks in the
// background and reports a difference within 1 s.
//
// Calls except barriers may be captured into a CUDA graph once their communicator exists. A
// captured call has no deadline and is not watched: it runs when the graph runs.
//
// Features that NCCL lacks are kUnsupported: int16 and bitwise reductions, receives from any
// source, and tags other than 0. (Messages of a pair of ranks arrive in the order in which they
// are sent, and in one order with the collectives. So two ranks that both send first and then
// receive wait for each other; the messages of a batch do not.)
//
// Owned by a ProcessGroup. One thread at a time calls it, except abort() and shared_empty(): any
// thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/backend.h"
#include "worker_lib/nccl/engine.h"
#include "worker_lib/nccl/reduction.h"

namespace ddprun {

// Memory of a tensor that a call reads or writes, without the tensor.
template <class Pointer>
struct NcclPart {
  Pointer data = nullptr;
  std::size_t bytes = 0;
  std::size_t elements = 0;
};
using WrittenPart = NcclPart<void*>;
using ReadPart = NcclPart<const void*>;

class NcclBackend final : public Backend {
 public:
  // Makes no communicator. All ranks of the group make a backend with the same name; see
  // NcclEngine.
  NcclBackend(const NcclApi& api, std::shared_ptr<Store> store, const NcclBackendOptions& options,
              std::shared_ptr<CpuGroup> peers = nullptr, std::shared_ptr<NcclSeed> seed = nullptr)
      : engine_(api, std::move(store), options, std::move(peers), std::move(seed)) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return engine_.options().rank; }
  int size() const override { return engine_.options().world_size; }
  bool takes(torch::DeviceType type) const override {
    return type == engine_.options().device.type();
  }

  Work all_reduce(TensorList tensors, Reduction how, CallOptions call) override;
  Work reduce(const torch::Tensor& tensor, Reduction how, int root, CallOptions call) override;
  Work broadcast(TensorList tensors, int root, CallOptions call) override;
  Work all_gather(TensorList outputs, TensorList inputs, CallOptions call) override;
  Work reduce_scatter(TensorList outputs, TensorList inputs, Reduction how,
                      CallOptions call) override;
  Work gather(TensorList outputs, const torch::Tensor& input, int root, CallOptions call) override;
  Work scatter(const torch::Tensor& output, TensorList inputs, int root, CallOptions call) override;
  Work all_to_all(TensorList outputs, TensorList inputs, CallOptions call) override;
  Work barrier(CallOptions call) override;
  // Uses the group of peers; does not wait for the device.
  Work monitored_barrier(CallOptions call) override;
  Work send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) override;
  Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) override;
  std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) override;
  Work split_off(int color, int key, std::shared_ptr<void>* seed, CallOptions call) override;
  // Allocates NCCL memory on the group's device; undefined if there is none.
  torch::Tensor shared_empty(torch::IntArrayRef sizes, torch::ScalarType dtype) override;
  void abort(const std::string& reason) override;

 private:
  int device_of(const torch::Tensor& tensor) const;
  // Return a call on these tensors, which it keeps; what it launches is still missing.
  NcclIssue issue_of(const char* name, TensorList tensors, int peer = -1) const;
  NcclIssue collective(const char* name, CallKind kind, TensorList tensors, int root = -1,
                       std::optional<ReduceOp> op = {}) const;
  Work issue(NcclIssue issue, CallOptions call);
  Work fail(const Error& failure);
  NcclIssue::Message send_of(const torch::Tensor& tensor, int peer) const;
  NcclIssue::Message recv_of(const torch::Tensor& tensor, int peer) const;
  // Sends from[r] to rank r and receives to[r] from it, if there are any bytes.
  Work issue_messages(NcclIssue issue, std::vector<WrittenPart> to, std::vector<ReadPart> from,
                      CallOptions call);
  NcclResult grouped(std::size_t count, const std::function<NcclResult(std::size_t)>& call) const {
    return nccl_group(engine_.api(), count, call);
  }
  template <class Calls>
  NcclResult with_op(const NcclReduction& as, const NcclLaneView& lane, Calls calls) const;

  const std::string name_ = "nccl";
  NcclEngine engine_;
  torch::Tensor token_;  // the tensor that barriers reduce
};

// BackendFactory: makes nccl backends. init_with() gets it from a program that is linked with
// ddprun::worker_cuda.
class BackendFactory {
 public:
  explicit BackendFactory(const NcclApi& api) : api_(api) {}

  // Returns the number of GPUs; 0 without a GPU or a driver.
  int device_count() const;
  // Makes the device this thread's current one.
  Result<void> select_device(int index) const;
  // seed: what split_off() gave for this group, or null.
  std::unique_ptr<Backend> make(std::shared_ptr<Store> store, const NcclBackendOptions& options,
                                std::shared_ptr<CpuGroup> peers = nullptr,
                                std::shared_ptr<void> seed = nullptr) const;

 private:
  const NcclApi& api_;
};

}  // namespace ddprun
