// What the tests of DistributedDataParallel share: a small net with fixed weights, data that
// depends only on rank and step, and the expected gradients, computed without communication.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>

#include <cstring>
#include <string>
#include <vector>

#include "ddprun/data_parallel.h"
#include "tests/support/thread_world.h"
#include "tests/support/torch.h"

namespace ddprun {

using Tensors = std::vector<torch::Tensor>;

// Small buckets, so that there are several.
inline constexpr DataParallelOptions kSmall{.first_bucket_bytes = 100, .bucket_bytes = 300};

// Returns random numbers that depend only on the seed, on any thread.
inline torch::Tensor data(std::uint64_t seed, std::vector<std::int64_t> sizes,
                          torch::Dtype dtype = torch::kFloat32) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed), torch::dtype(dtype));
}

// Returns true if both tensors have the same bits, including -0 and NaN.
inline bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.sizes() != b.sizes() || a.dtype() != b.dtype()) return false;
  const torch::Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
  return std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

inline torch::nn::Sequential make_mlp() {
  torch::nn::Sequential net{torch::nn::Linear(5, 16), torch::nn::Tanh(), torch::nn::Linear(16, 8),
                            torch::nn::Tanh(), torch::nn::Linear(8, 2)};
  torch::NoGradGuard no_grad;
  std::uint64_t seed = 100;
  for (torch::Tensor& p : net->parameters()) p.copy_(data(seed++, p.sizes().vec()) * 0.5);
  return net;
}

// Returns rank r's loss of one step.
inline torch::Tensor loss_of(const torch::Tensor& output, int rank, int step = 0) {
  return (output * data(1000 + rank + 10 * step, output.sizes().vec())).sum();
}
inline torch::Tensor input_of(int rank, int step = 0) { return data(rank + 10 * step, {4, 5}); }

inline Tensors gradients_of(torch::nn::Module& net) {
  Tensors result;
  for (const torch::Tensor& p : net.parameters()) result.push_back(p.grad().clone());
  return result;
}

// Returns the gradients that each rank computes in one step, without communication.
inline std::vector<Tensors> local_gradients(int world, int step = 0) {
  std::vector<Tensors> result;
  for (int rank = 0; rank < world; ++rank) {
    auto net = make_mlp();
    loss_of(net->forward(input_of(rank, step)), rank, step).backward();
    result.push_back(gradients_of(*net));
  }
  return result;
}

// Returns (g0 + g1 + ...) / W, summed in rank order.
inline Tensors averaged(const std::vector<Tensors>& by_rank) {
  Tensors result;
  for (std::size_t i = 0; i < by_rank[0].size(); ++i) {
    torch::Tensor sum = by_rank[0][i].clone();
    for (std::size_t r = 1; r < by_rank.size(); ++r) sum += by_rank[r][i];
    result.push_back(sum / static_cast<double>(by_rank.size()));
  }
  return result;
}

inline void expect_same(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(same_bits(a[i], b[i])) << "tensor " << i << ":\n" << a[i] << "\n" << b[i];
}

// Runs `rank_body` on each rank of a world and returns the results by rank.
template <class Body>
auto on_each_rank(int size, Body rank_body) {
  testing_support::ThreadWorld world(size);
  std::vector<decltype(rank_body(std::declval<ProcessGroup&>()))> results(size);
  world.run([&](ProcessGroup& group) { results[group.rank()] = rank_body(group); });
  return results;
}

inline std::vector<std::size_t> sizes_of(const testing_support::ThreadWorld& world,
                                         const std::string& name) {
  std::vector<std::size_t> result;
  for (const testing_support::ThreadWorld::Call& call : world.calls())
    if (call.name == name) result.push_back(call.bytes);
  return result;
}

}  // namespace ddprun
