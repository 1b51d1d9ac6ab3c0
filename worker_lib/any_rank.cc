#include "worker_lib/any_rank.h"

#include <torch/torch.h>

namespace ddprun {

std::vector<bool> wishes_of_all(ProcessGroup& group, const std::vector<bool>& mine) {
  if (group.size() == 1) return mine;
  // Not on a GPU where the cpu will do: its stream would be waited for.
  const torch::Device where = group.takes(torch::kCPU) ? torch::kCPU : group.device();
  const torch::Tensor wished =
      torch::tensor(std::vector<std::int32_t>(mine.begin(), mine.end())).to(where);
  group.all_reduce(wished, {.op = ReduceOp::kMax}).wait();
  const torch::Tensor of_all = wished.cpu();
  std::vector<bool> result;
  for (std::int64_t i = 0; i < of_all.numel(); ++i)
    result.push_back(of_all[i].item<std::int32_t>() != 0);
  return result;
}

}  // namespace ddprun
