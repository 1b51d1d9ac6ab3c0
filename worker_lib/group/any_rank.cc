#include "worker_lib/group/any_rank.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>
#include <torch/types.h>

#include <utility>

#include "worker_lib/group/late_checks.h"
#include "worker_lib/group/work_state.h"

namespace ddprun {

namespace {

// Makes a tensor of the requests, on the CPU if the group supports that. The copy to a GPU does
// not wait for its stream.
torch::Tensor as_tensor(const std::vector<bool>& requests, const ProcessGroup& group) {
  const torch::Tensor values =
      torch::tensor(std::vector<std::int32_t>(requests.begin(), requests.end()));
  if (group.takes(torch::kCPU)) return values;
  const torch::Tensor requested =
      torch::empty(values.sizes(), values.options().device(group.device()));
  requested.copy_(detail::host_tensor_for(requested).copy_(values), /*non_blocking=*/true);
  return requested;
}

// Returns the values that the call has written on a device. Uses a separate stream, because the
// caller's stream may have a whole step enqueued.
torch::Tensor result_on_host(const Work& work, const torch::Tensor& values) {
  const c10::impl::VirtualGuardImpl device(values.device().type());
  const c10::StreamGuard side_stream(device.getStreamFromGlobalPool(values.device()));
  work.wait();
  const torch::Tensor result = detail::HostCopy(values).wait();
  // Throws if the call was aborted. Its copy completes in any case.
  work.wait(kTimeToFail);
  return result;
}

std::vector<bool> as_requests(const torch::Tensor& requested) {
  const torch::Tensor values = requested.cpu();
  std::vector<bool> result;
  for (std::int64_t i = 0; i < values.numel(); ++i)
    result.push_back(values[i].item<std::int32_t>() != 0);
  return result;
}

}  // namespace

std::vector<bool> any_rank_requests(ProcessGroup& group, const std::vector<bool>& mine) {
  if (group.size() == 1) return mine;
  const torch::Tensor requested = as_tensor(mine, group);
  group.all_reduce(requested, {.op = ReduceOp::kMax}).wait();
  return as_requests(requested);
}

std::vector<bool> LateRequests::take_previous(const std::vector<bool>& mine) {
  if (group_.size() == 1) return mine;
  if (!sent_) return std::vector<bool>(mine.size());
  const Sent sent = *std::exchange(sent_, std::nullopt);
  if (!sent.requested.is_cpu()) return as_requests(result_on_host(sent.work, sent.requested));
  sent.work.wait();
  return as_requests(sent.requested);
}

void LateRequests::send(const std::vector<bool>& mine) {
  if (group_.size() == 1) return;
  Sent sent{.requested = as_tensor(mine, group_), .work = {}};
  sent.work = group_.all_reduce(sent.requested, {.op = ReduceOp::kMax, .async = true});
  sent_ = std::move(sent);
}

}  // namespace ddprun
