#include "worker_lib/group/backend_by_device.h"

#include <algorithm>

#include "base/assert.h"

namespace ddprun {
namespace {

bool is_for(const BackendByDevice::Part& part, torch::DeviceType type) {
  return std::ranges::find(part.devices, type) != part.devices.end();
}

}  // namespace

bool BackendByDevice::takes(torch::DeviceType type) const {
  return std::ranges::any_of(parts_, [&](const Part& part) { return is_for(part, type); });
}

Backend& BackendByDevice::of(const torch::Tensor& tensor) const {
  const auto type = tensor.device().type();
  const auto found =
      std::ranges::find_if(parts_, [&](const Part& part) { return is_for(part, type); });
  DDPRUN_ASSERT(found != parts_.end(), "a tensor is on a device that the group serves");
  return *found->backend;
}

Work BackendByDevice::all_reduce(TensorList tensors, Reduction how, CallOptions call) {
  return of(tensors[0]).all_reduce(tensors, how, call);
}

Work BackendByDevice::reduce(const torch::Tensor& tensor, Reduction how, int root,
                             CallOptions call) {
  return of(tensor).reduce(tensor, how, root, call);
}

Work BackendByDevice::broadcast(TensorList tensors, int root, CallOptions call) {
  return of(tensors[0]).broadcast(tensors, root, call);
}

Work BackendByDevice::all_gather(TensorList outputs, TensorList inputs, CallOptions call) {
  return of(inputs[0]).all_gather(outputs, inputs, call);
}

Work BackendByDevice::reduce_scatter(TensorList outputs, TensorList inputs, Reduction how,
                                     CallOptions call) {
  return of(inputs[0]).reduce_scatter(outputs, inputs, how, call);
}

Work BackendByDevice::gather(TensorList outputs, const torch::Tensor& input, int root,
                             CallOptions call) {
  return of(input).gather(outputs, input, root, call);
}

Work BackendByDevice::scatter(const torch::Tensor& output, TensorList inputs, int root,
                              CallOptions call) {
  return of(output).scatter(output, inputs, root, call);
}

Work BackendByDevice::all_to_all(TensorList outputs, TensorList inputs, CallOptions call) {
  return of(inputs[0]).all_to_all(outputs, inputs, call);
}

Work BackendByDevice::send(const torch::Tensor& tensor, int destination, int tag,
                           CallOptions call) {
  return of(tensor).send(tensor, destination, tag, call);
}

Work BackendByDevice::recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) {
  return of(tensor).recv(tensor, source, tag, call);
}

std::vector<Work> BackendByDevice::batch(const std::vector<P2POp>& operations, CallOptions call) {
  return of(operations[0].tensor).batch(operations, call);
}

void BackendByDevice::abort(const std::string& reason) {
  for (const Part& part : parts_) part.backend->abort(reason);
}

}  // namespace ddprun
