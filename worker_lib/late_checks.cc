#include "worker_lib/late_checks.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <utility>

namespace ddprun::detail {

void LateChecks::add(const torch::Tensor& values, Look look) {
  Check check{.on_host = {}, .copied = {}, .look = std::move(look)};
  if (values.is_cuda()) {
    // A copy into ordinary memory would wait for the stream.
    check.on_host =
        torch::empty(values.sizes(), values.options().device(torch::kCPU).pinned_memory(true));
    check.on_host.copy_(values, /*non_blocking=*/true);
    check.copied.emplace(values.device().type());
    check.copied->record(
        c10::impl::VirtualGuardImpl(values.device().type()).getStream(values.device()));
  } else {
    check.on_host = values.is_cpu() ? values.clone() : values.cpu();
  }
  const std::lock_guard lock(mutex_);
  checks_.push_back(std::move(check));
}

void LateChecks::settle() {
  std::vector<Check> due;
  {
    const std::lock_guard lock(mutex_);
    due.swap(checks_);
  }
  for (Check& check : due) {
    if (check.copied) check.copied->synchronize();
    check.look(check.on_host);
  }
}

}  // namespace ddprun::detail
