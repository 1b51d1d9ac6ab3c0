// NcclBackend: the nccl backend behind a ProcessGroup, written against the table of api.h
// only. What calls are made of; NcclEngine carries them out.
//
// Every collective goes to a stream of the backend's own, one for each device that the rank uses:
// it waits there for what the caller's current stream has been given so far, and Work::wait() makes
// the caller's stream wait for it; the host waits for neither. Only a barrier's wait, and a wait
// with a timeout, block the host, and the first call on a device, which makes a communicator.
//
// The peers are a CpuGroup of the same ranks that makes no calls: NCCL does not notice a dead rank,
// or does not say which one; its watch does, within 1 s. Nor does NCCL notice ranks that call
// different collectives: the engine compares what they call, beside the calls, and tells them
// within 1 s.
//
// Calls may be captured into a CUDA graph once their communicator is there, barriers excepted. A
// captured call has no deadline, and is not watched: it runs when the graph does.
//
// What NCCL does not have is kUnsupported: int16 and bitwise reductions, receives from any source,
// and tags other than 0 (messages of a pair of ranks arrive in the order in which they are sent, in
// step with the collectives, so two ranks that first send and then receive wait for each other;
// those of a batch do not).
//
// Owned by a ProcessGroup. One thread at a time calls, except abort() and shared_empty(): any
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

// A tensor that a call reads or writes, without the tensor.
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
  // Makes no communicator. All ranks of the group make one, with the same name; see NcclEngine.
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
  // By the group of peers: the device is not waited for.
  Work monitored_barrier(CallOptions call) override;
  Work send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) override;
  Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) override;
  std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) override;
  Work split_off(int color, int key, std::shared_ptr<void>* seed, CallOptions call) override;
  // Memory of NCCL's on the group's device; undefined where there is none.
  torch::Tensor shared_empty(torch::IntArrayRef sizes, torch::ScalarType dtype) override;
  void abort(const std::string& reason) override;

 private:
  int device_of(const torch::Tensor& tensor) const;
  Work issue(NcclIssue issue, CallOptions call);
  Work fail(const Error& failure);
  NcclIssue::Message send_of(const torch::Tensor& tensor, int peer) const;
  NcclIssue::Message recv_of(const torch::Tensor& tensor, int peer) const;
  // from[r] goes to rank r, to[r] comes from it, where there are any bytes.
  Work issue_messages(NcclIssue issue, std::vector<WrittenPart> to, std::vector<ReadPart> from,
                      CallOptions call);
  NcclResult grouped(std::size_t count, const std::function<NcclResult(std::size_t)>& call) const {
    return nccl_group(engine_.api(), count, call);
  }
  template <class Calls>
  NcclResult with_op(const NcclReduction& as, const NcclLaneView& lane, Calls calls) const;

  const std::string name_ = "nccl";
  NcclEngine engine_;
  torch::Tensor token_;  // what barriers reduce
};

// Makes nccl backends: what init_with() gets from a program that is linked with
// ddprun::worker_cuda.
class BackendFactory {
 public:
  explicit BackendFactory(const NcclApi& api) : api_(api) {}

  // 0 where there is no GPU or no driver.
  int device_count() const;
  // Makes the device the current one of this thread.
  Result<void> select_device(int index) const;
  // seed: what split_off() gave for this group, or null.
  std::unique_ptr<Backend> make(std::shared_ptr<Store> store, const NcclBackendOptions& options,
                                std::shared_ptr<CpuGroup> peers = nullptr,
                                std::shared_ptr<void> seed = nullptr) const;

 private:
  const NcclApi& api_;
};

}  // namespace ddprun
