#include <gtest/gtest.h>

#include <mutex>

#include "ddprun/context.h"
#include "tests/support/context_world.h"
#include "tests/support/torch.h"

namespace ddprun {
namespace {

// The ranks are threads that share LibTorch's generator: one draws at a time.
TEST(ContextSeed, GivesEachRankNumbersOfItsOwnTheSameInEveryRun) {
  std::mutex mutex;
  std::vector<torch::Tensor> drawn(2);
  testing_support::in_a_world_of(2, [&](Context& context) {
    const std::lock_guard lock(mutex);
    torch::Tensor& mine = drawn[static_cast<std::size_t>(context.rank())];
    context.manual_seed(7);
    mine = torch::rand({100});
    context.manual_seed(7);
    EXPECT_TRUE(torch::equal(torch::rand({100}), mine));
  });
  EXPECT_FALSE(torch::equal(drawn[0], drawn[1]));
  torch::manual_seed(7);
  EXPECT_TRUE(torch::equal(torch::rand({100}), drawn[0]));
}

}  // namespace
}  // namespace ddprun
