#include "worker_lib/group/backend_by_device.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace ddprun {
namespace {

class BackendByDevice final : public Backend {
 public:
  BackendByDevice(std::string name, std::vector<BackendPart> parts)
      : name_(std::move(name)), parts_(std::move(parts)) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return main().rank(); }
  int size() const override { return main().size(); }
  bool takes(torch::DeviceType type) const override {
    return std::ranges::any_of(parts_, [&](const BackendPart& part) { return is_for(part, type); });
  }

  Work all_reduce(TensorList tensors, Reduction how, CallOptions call) override {
    return of(tensors[0]).all_reduce(tensors, how, call);
  }
  Work reduce(const torch::Tensor& tensor, Reduction how, int root, CallOptions call) override {
    return of(tensor).reduce(tensor, how, root, call);
  }
  Work broadcast(TensorList tensors, int root, CallOptions call) override {
    return of(tensors[0]).broadcast(tensors, root, call);
  }
  Work all_gather(TensorList outputs, TensorList inputs, CallOptions call) override {
    return of(inputs[0]).all_gather(outputs, inputs, call);
  }
  Work reduce_scatter(TensorList outputs, TensorList inputs, Reduction how,
                      CallOptions call) override {
    return of(inputs[0]).reduce_scatter(outputs, inputs, how, call);
  }
  Work gather(TensorList outputs, const torch::Tensor& input, int root, CallOptions call) override {
    return of(input).gather(outputs, input, root, call);
  }
  Work scatter(const torch::Tensor& output, TensorList inputs, int root,
               CallOptions call) override {
    return of(output).scatter(output, inputs, root, call);
  }
  Work all_to_all(TensorList outputs, TensorList inputs, CallOptions call) override {
    return of(inputs[0]).all_to_all(outputs, inputs, call);
  }
  Work barrier(CallOptions call) override { return main().barrier(call); }
  Work monitored_barrier(CallOptions call) override { return main().monitored_barrier(call); }

  Work send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) override {
    return of(tensor).send(tensor, destination, tag, call);
  }
  Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) override {
    return of(tensor).recv(tensor, source, tag, call);
  }
  std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) override {
    return of(operations[0].tensor).batch(operations, call);
  }
  bool sends_on_any_thread() const override {
    return std::ranges::all_of(
        parts_, [](const BackendPart& one) { return one.backend->sends_on_any_thread(); });
  }

  Work split_off(int color, int key, std::shared_ptr<void>* seed, CallOptions call) override {
    return main().split_off(color, key, seed, call);
  }
  torch::Tensor shared_empty(torch::IntArrayRef sizes, torch::ScalarType dtype) override {
    return main().shared_empty(sizes, dtype);
  }
  void abort(const std::string& reason) override {
    for (const BackendPart& part : parts_) part.backend->abort(reason);
  }

 private:
  static bool is_for(const BackendPart& part, torch::DeviceType type) {
    return std::ranges::find(part.devices, type) != part.devices.end();
  }
  Backend& main() const { return *parts_.front().backend; }
  Backend& of(const torch::Tensor& tensor) const {
    const auto type = tensor.device().type();
    const auto found =
        std::ranges::find_if(parts_, [&](const BackendPart& part) { return is_for(part, type); });
    DDPRUN_ASSERT(found != parts_.end(), "a tensor is on a device that the group serves");
    return *found->backend;
  }

  const std::string name_;
  const std::vector<BackendPart> parts_;
};

}  // namespace

std::unique_ptr<Backend> backend_by_device(std::string name, std::vector<BackendPart> parts) {
  return std::make_unique<BackendByDevice>(std::move(name), std::move(parts));
}

}  // namespace ddprun
