#include "examples/gpt.h"

#include <gtest/gtest.h>

#include <cmath>

namespace examples {
namespace {

constexpr GptSizes kSmall{.vocabulary = 11, .block = 8, .layers = 2, .heads = 2, .width = 16};

TEST(Gpt, AGuessDependsOnEveryTokenUpToThereAndOnNoneBehind) {
  torch::manual_seed(1);
  Gpt net(kSmall);
  const torch::NoGradGuard no_grad;
  const torch::Tensor tokens = torch::arange(8).unsqueeze(0);
  const torch::Tensor scores = net(tokens);
  ASSERT_EQ(scores.sizes(), (std::vector<std::int64_t>{1, 8, 11}));
  for (std::int64_t changed = 0; changed < 8; ++changed) {
    torch::Tensor others = tokens.clone();
    others[0][changed] = 10;
    const torch::Tensor moved = (net(others) - scores).abs().amax(2)[0];
    for (std::int64_t place = 0; place < 8; ++place)
      EXPECT_EQ(moved[place].item<float>() > 1e-6, place >= changed) << changed << " " << place;
  }
}

TEST(Gpt, ShorterSequencesAreTheBeginningsOfLongerOnes) {
  Gpt net(kSmall);
  const torch::NoGradGuard no_grad;
  const torch::Tensor tokens = torch::randint(11, {3, 8});
  EXPECT_TRUE(
      torch::allclose(net(tokens.narrow(1, 0, 5)), net(tokens).narrow(1, 0, 5), 1e-4, 1e-6));
}

TEST(Gpt, BeforeItHasLearnedEverythingIsAboutAsLikely) {
  torch::manual_seed(1);
  Gpt net(kSmall);
  const torch::Tensor tokens = torch::randint(11, {64, 9});
  const torch::Tensor scores = net(tokens.narrow(1, 0, 8)).flatten(0, 1);
  const torch::Tensor loss = torch::cross_entropy_loss(scores, tokens.narrow(1, 1, 8).flatten());
  EXPECT_NEAR(loss.item<double>(), std::log(11), 0.05);
}

TEST(Gpt, DrawsTheSameTokensForTheSameSeedAlsoMoreThanABlock) {
  torch::manual_seed(1);
  Gpt net(kSmall);
  const torch::Tensor drawn = drawn_tokens(net, 3, 40, 7);
  EXPECT_EQ(drawn.sizes(), (std::vector<std::int64_t>{40}));
  EXPECT_TRUE(drawn.ge(0).logical_and(drawn.lt(11)).all().item<bool>());
  EXPECT_TRUE(torch::equal(drawn, drawn_tokens(net, 3, 40, 7)));
  EXPECT_FALSE(torch::equal(drawn, drawn_tokens(net, 3, 40, 8)));
}

}  // namespace
}  // namespace examples
