#include "worker_lib/group/late_checks.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace ddprun::detail {
namespace {

// Calls `call` with each element, even after an exception. Then throws the first exception.
template <class All, class Call>
void call_for_all(const All& all, Call call) {
  std::exception_ptr first;
  for (const auto& one : all) {
    try {
      call(one);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace

// Pinned memory: a copy to or from pageable memory would wait for the stream of a GPU.
torch::Tensor host_tensor_for(const torch::Tensor& on_device) {
  return torch::empty(
      on_device.sizes(),
      torch::TensorOptions(on_device.scalar_type()).pinned_memory(on_device.is_cuda()));
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

void LateChecks::add(const torch::Tensor& values, Look look, Look alone) {
  auto check = std::make_shared<const Check>(HostCopy(values), std::move(look), std::move(alone));
  const std::lock_guard lock(mutex_);
  checks_.push_back(std::move(check));
}

void LateChecks::settle() {
  Checks due;
  {
    const std::lock_guard lock(mutex_);
    due.swap(checks_);
  }
  call_for_all(due, [](const auto& check) { check->look(check->values.wait()); });
}

void LateChecks::look_alone() {
  Checks due;
  {
    const std::lock_guard lock(mutex_);
    due = checks_;
  }
  call_for_all(due, [](const auto& check) {
    (check->alone ? check->alone : check->look)(check->values.wait());
  });
}

void LateChecks::forget() {
  const std::lock_guard lock(mutex_);
  checks_.clear();
}

bool LateChecksOfGroup::Member::is_among(const std::vector<int>& present) const {
  const auto is_present = [&](int rank) { return std::ranges::count(present, rank) > 0; };
  return std::ranges::all_of(ranks, is_present);
}

void LateChecksOfGroup::add(const std::shared_ptr<LateChecks>& checks, std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  std::erase_if(members_, [](const Member& one) { return one.checks.expired(); });
  members_.push_back({checks, std::move(ranks)});
}

std::vector<LateChecksOfGroup::Member> LateChecksOfGroup::members() {
  const std::lock_guard lock(mutex_);
  return members_;
}

void LateChecksOfGroup::settle(const std::vector<int>& present) {
  call_for_all(members(), [&](const Member& one) {
    const auto checks = one.checks.lock();
    if (!checks) return;
    if (one.is_among(present))
      checks->settle();
    else
      checks->look_alone();
  });
}

void LateChecksOfGroup::forget(const std::vector<int>& present) {
  for (const Member& one : members())
    if (const auto checks = one.checks.lock(); checks && one.is_among(present)) checks->forget();
}

}  // namespace ddprun::detail
