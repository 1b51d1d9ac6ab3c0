#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "ddprun/context.h"
#include "tests/support/eventually.h"
#include "tests/support/map_store.h"
#include "tests/support/rank_threads.h"

namespace ddprun {
namespace {

// The ranks are threads, which share LibTorch's generator: one draws at a time.
TEST(ContextSeed, GivesEachRankNumbersOfItsOwnTheSameInEveryRun) {
  const auto store = std::make_shared<testing_support::MapStore>();
  std::mutex mutex;
  std::vector<torch::Tensor> drawn(2);
  testing_support::run_ranks(2, [&](int rank) {
    Context context = init_with({.device = torch::kCPU,
                                 .timeout = testing_support::kPatience,
                                 .rank = rank,
                                 .world_size = 2,
                                 .store = store},
                                nullptr);
    {
      const std::lock_guard lock(mutex);
      context.manual_seed(7);
      drawn[static_cast<std::size_t>(rank)] = torch::rand({100});
      context.manual_seed(7);
      EXPECT_TRUE(torch::equal(torch::rand({100}), drawn[static_cast<std::size_t>(rank)]));
    }
    context.group().barrier();
  });
  EXPECT_FALSE(torch::equal(drawn[0], drawn[1]));
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(torch::rand({100}), drawn[0]));
}

}  // namespace
}  // namespace ddprun
