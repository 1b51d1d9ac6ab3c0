#include "worker_lib/ddp/sparse_average.h"

#include <algorithm>

namespace ddprun {
namespace {

// Returns the tensor with rows added at the end of the first dimension, up to `length`.
torch::Tensor padded(const torch::Tensor& tensor, std::int64_t length) {
  auto sizes = tensor.sizes().vec();
  sizes[0] = length;
  torch::Tensor result = tensor.new_zeros(sizes);
  result.narrow(0, 0, tensor.size(0)).copy_(tensor);
  return result;
}

torch::Tensor for_all_ranks(const torch::Tensor& one, int world_size) {
  auto sizes = one.sizes().vec();
  sizes.insert(sizes.begin(), world_size);
  return one.new_empty(sizes);
}

}  // namespace

std::vector<torch::Tensor> average_sparse(const std::vector<torch::Tensor>& mine, int divisor,
                                          ProcessGroup& group, std::optional<Timeout> timeout) {
  if (mine.empty()) return {};
  const torch::NoGradGuard no_grad;
  const int world_size = group.size();
  std::vector<torch::Tensor> own;
  std::vector<std::int64_t> lengths;
  for (const torch::Tensor& tensor : mine) {
    own.push_back(tensor.coalesce());
    lengths.push_back(own.back()._nnz());
  }
  const torch::Tensor own_lengths = torch::tensor(lengths).to(group.device());
  torch::Tensor all_lengths = for_all_ranks(own_lengths, world_size);
  // Waits on the host, so that an aborted call throws: lengths that have not arrived are
  // uninitialized.
  const Timeout patience = timeout.value_or(group.timeout());
  group.all_gather_into_tensor(all_lengths, own_lengths, {.timeout = timeout}).wait(patience);
  all_lengths = all_lengths.cpu();
  const auto length = [&](int rank, std::size_t i) {
    return all_lengths[rank][static_cast<std::int64_t>(i)].item<std::int64_t>();
  };

  // For each tensor: indices, with one row for each entry, and values.
  std::vector<torch::Tensor> inputs, outputs;
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::int64_t longest = 0;
    for (int rank = 0; rank < world_size; ++rank) longest = std::max(longest, length(rank, i));
    inputs.push_back(padded(own[i].indices().t(), longest));
    inputs.push_back(padded(own[i].values(), longest));
  }
  for (const torch::Tensor& input : inputs) outputs.push_back(for_all_ranks(input, world_size));
  group.all_gather_into_tensor_coalesced(outputs, inputs, {.timeout = timeout}).wait(patience);

  std::vector<torch::Tensor> averages;
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::vector<torch::Tensor> indices, values;
    for (int rank = 0; rank < world_size; ++rank) {
      indices.push_back(outputs[2 * i][rank].narrow(0, 0, length(rank, i)));
      values.push_back(outputs[2 * i + 1][rank].narrow(0, 0, length(rank, i)));
    }
    const torch::Tensor sum =
        torch::sparse_coo_tensor(torch::cat(indices).t(), torch::cat(values), own[i].sizes())
            .coalesce();
    sum._values().div_(divisor);
    averages.push_back(sum);
  }
  return averages;
}

}  // namespace ddprun
