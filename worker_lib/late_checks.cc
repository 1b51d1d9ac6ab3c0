#include "worker_lib/late_checks.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <utility>

namespace ddprun::detail {

// A copy to or from ordinary memory would wait for the stream of a GPU.
torch::Tensor host_tensor_for(const torch::Tensor& on_device) {
  return torch::empty(on_device.sizes(), torch::TensorOptions(on_device.scalar_type())
                                             .pinned_memory(on_device.is_cuda()));
}

HostCopy::HostCopy(const torch::Tensor& values) {
  if (values.is_cpu()) {
    on_host_ = values.clone();
    return;
  }
  on_device_ = values;
  on_host_ = host_tensor_for(values);
  on_host_.copy_(values, /*non_blocking=*/true);
  const torch::Device device = values.device();
  copied_.emplace(device.type());
  copied_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

const torch::Tensor& HostCopy::wait() const {
  if (copied_) copied_->synchronize();
  return on_host_;
}

void LateChecks::add(const torch::Tensor& values, Look look) {
  Check check{HostCopy(values), std::move(look)};
  const std::lock_guard lock(mutex_);
  checks_.push_back(std::move(check));
}

void LateChecks::settle() {
  std::vector<Check> due;
  {
    const std::lock_guard lock(mutex_);
    due.swap(checks_);
  }
  for (const Check& check : due) check.look(check.values.wait());
}

void LateChecksOfGroup::add(const std::shared_ptr<LateChecks>& checks) {
  const std::lock_guard lock(mutex_);
  std::erase_if(all_, [](const auto& one) { return one.expired(); });
  all_.push_back(checks);
}

void LateChecksOfGroup::settle() {
  std::vector<std::weak_ptr<LateChecks>> all;
  {
    const std::lock_guard lock(mutex_);
    all = all_;
  }
  for (const auto& one : all)
    if (const auto checks = one.lock()) checks->settle();
}

}  // namespace ddprun::detail
