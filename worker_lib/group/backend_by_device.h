// BackendByDevice: several backends in one group, each for the tensors of some types of devices.
// Calls of different backends do not wait for each other. A barrier is the main backend's.
//
// Owned by a ProcessGroup, which has checked that the tensors of a call are on one device that
// the group serves. Threads: as Backend.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/backend.h"

namespace ddprun {

class BackendByDevice final : public Backend {
 public:
  struct Part {
    std::vector<torch::DeviceType> devices;
    std::unique_ptr<Backend> backend;
  };
  // The first part is the main one. name: "cpu:cpu,cuda:nccl".
  BackendByDevice(std::string name, std::vector<Part> parts)
      : name_(std::move(name)), parts_(std::move(parts)) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return main().rank(); }
  int size() const override { return main().size(); }
  bool takes(torch::DeviceType type) const override;

  Work all_reduce(TensorList tensors, Reduction how, CallOptions call) override;
  Work reduce(const torch::Tensor& tensor, Reduction how, int root, CallOptions call) override;
  Work broadcast(TensorList tensors, int root, CallOptions call) override;
  Work all_gather(TensorList outputs, TensorList inputs, CallOptions call) override;
  Work reduce_scatter(TensorList outputs, TensorList inputs, Reduction how,
                      CallOptions call) override;
  Work gather(TensorList outputs, const torch::Tensor& input, int root, CallOptions call) override;
  Work scatter(const torch::Tensor& output, TensorList inputs, int root, CallOptions call) override;
  Work all_to_all(TensorList outputs, TensorList inputs, CallOptions call) override;
  Work barrier(CallOptions call) override { return main().barrier(call); }
  Work monitored_barrier(CallOptions call) override { return main().monitored_barrier(call); }
  Work send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) override;
  Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) override;
  std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) override;
  bool sends_on_any_thread() const override {
    return std::ranges::all_of(parts_,
                               [](const Part& one) { return one.backend->sends_on_any_thread(); });
  }

  Work split_off(int color, int key, std::shared_ptr<void>* seed, CallOptions call) override {
    return main().split_off(color, key, seed, call);
  }
  torch::Tensor shared_empty(torch::IntArrayRef sizes, torch::ScalarType dtype) override {
    return main().shared_empty(sizes, dtype);
  }
  void abort(const std::string& reason) override;

 private:
  Backend& main() const { return *parts_.front().backend; }
  Backend& of(const torch::Tensor& tensor) const;

  const std::string name_;
  const std::vector<Part> parts_;
};

}  // namespace ddprun
