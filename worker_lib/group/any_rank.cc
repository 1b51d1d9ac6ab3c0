#include "worker_lib/group/any_rank.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>
#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "base/concat.h"
#include "worker_lib/group/late_checks.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {

using nlohmann::json;

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
  const c10::StreamGuard aside(device.getStreamFromGlobalPool(values.device()));
  work.wait();
  const torch::Tensor result = detail::HostCopy(values).wait();
  work.wait(kTimeToFail);  // throws if the call was aborted; its copy completes, too
  return result;
}

std::vector<bool> as_requests(const torch::Tensor& requested) {
  const torch::Tensor of_all = requested.cpu();
  std::vector<bool> result;
  for (std::int64_t i = 0; i < of_all.numel(); ++i)
    result.push_back(of_all[i].item<std::int32_t>() != 0);
  return result;
}

}  // namespace

std::vector<bool> any_rank_requests(ProcessGroup& group, const std::vector<bool>& mine) {
  if (group.size() == 1) return mine;
  const torch::Tensor requested = as_tensor(mine, group);
  group.all_reduce(requested, {.op = ReduceOp::kMax}).wait();
  return as_requests(requested);
}

std::vector<bool> LateRequests::last(const std::vector<bool>& mine) {
  if (group_.size() == 1) return mine;
  if (!sent_) return std::vector<bool>(mine.size());
  const Sent sent = *std::exchange(sent_, std::nullopt);
  if (!sent.requested.is_cpu()) return as_requests(result_on_host(sent.work, sent.requested));
  sent.work.wait();
  return as_requests(sent.requested);
}

void LateRequests::begin(const std::vector<bool>& mine) {
  if (group_.size() == 1) return;
  Sent sent{.requested = as_tensor(mine, group_), .work = {}};
  sent.work = group_.all_reduce(sent.requested, {.op = ReduceOp::kMax, .async = true});
  sent_ = std::move(sent);
}

json to_json_report(const std::optional<DistError>& failure) {
  if (!failure) return nullptr;
  return {{"kind", failure->kind()}, {"what", failure->what()}};
}

void throw_reported(const json& report, const std::string& whose) {
  if (report.is_null()) return;
  refuse(whose + report.at("what").get<std::string>(), report.at("kind").get<DistError::Kind>());
}

std::vector<json> on_every_rank(ProcessGroup& group, const char* doing, Timeout timeout,
                                const std::function<json()>& part) {
  json own{{"failure", nullptr}, {"value", nullptr}};
  try {
    with_dist_errors(doing, [&] { own["value"] = part(); });
  } catch (const DistError& failure) {
    own["failure"] = to_json_report(failure);
  }
  const LongWait for_the_others(group);
  std::vector<json> values;
  const std::vector<json> all = group.all_gather_object(own, timeout);
  const auto failed_alike = [&](const json& one) {
    return one.at("failure") == all[0].at("failure");
  };
  if (std::ranges::all_of(all, failed_alike)) throw_reported(all[0].at("failure"));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    throw_reported(all[rank].at("failure"), concat(doing, ": rank ", rank, ": "));
    values.push_back(all[rank].at("value"));
  }
  return values;
}

}  // namespace ddprun
