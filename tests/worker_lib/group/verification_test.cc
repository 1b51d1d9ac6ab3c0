#include "worker_lib/group/verification.h"
#include "tests/support/torch.h"

#include <gtest/gtest.h>

#include <limits>

namespace ddprun {
namespace {

using Tensors = std::vector<torch::Tensor>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Verification, ReadsWhatIsAskedFor) {
  for (const char* off : {"", "0"}) {
    EXPECT_FALSE(parse_verify(off)->nan || parse_verify(off)->results);
  }
  EXPECT_FALSE(parse_verify(std::nullopt)->nan);
  EXPECT_TRUE(parse_verify("1")->nan && parse_verify("1")->results);
  EXPECT_TRUE(parse_verify("nan")->nan && !parse_verify("nan")->results);
  EXPECT_TRUE(!parse_verify("results")->nan && parse_verify("results")->results);
  EXPECT_EQ(words_of(*parse_verify("1")), "NaN and results");
  EXPECT_EQ(words_of(*parse_verify("nan")), "NaN");
  EXPECT_EQ(words_of(*parse_verify("results")), "results");
  EXPECT_EQ(words_of(Verify()), "");
  ASSERT_FALSE(parse_verify("yes"));
  EXPECT_EQ(parse_verify("yes").error().message(),
            "invalid value 'yes' (expected 1, nan, results or 0)");
}

TEST(Verification, FindsTheFirstNanAndCountsAll) {
  const Tensors tensors{torch::zeros({0}), torch::tensor({1, 2}),
                        torch::tensor({{1.0, kNan}, {kNan, 2.0}}), torch::tensor({kNan})};
  const NanFound found = find_nan(tensors);
  EXPECT_EQ(found.count, 3);
  EXPECT_EQ(found.tensor, 2);
  EXPECT_EQ(found.element, 1);
}

TEST(Verification, KnowsNanInEveryFloatingDtype) {
  for (const auto type : {torch::kFloat16, torch::kBFloat16, torch::kFloat32, torch::kFloat64,
                          torch::kComplexFloat, torch::kComplexDouble}) {
    const torch::Tensor tensor = torch::full({3}, kNan).to(type);
    EXPECT_EQ(find_nan(Tensors{tensor}).count, 3) << type;
    EXPECT_EQ(find_nan(Tensors{torch::ones({3}).to(type)}).count, 0) << type;
  }
  EXPECT_EQ(find_nan({}).count, 0);
  EXPECT_EQ(find_nan(Tensors{torch::full({2}, 1 / 0.0)}).count, 0);  // infinity counts as a number
}

TEST(Verification, EveryBitCountsInADigest) {
  const torch::Tensor tensor = torch::arange(1001, torch::kUInt8);
  const std::uint64_t before = digest_of(Tensors{tensor});
  EXPECT_EQ(digest_of(Tensors{tensor.clone()}), before);
  for (const int at : {0, 500, 999, 1000}) {
    torch::Tensor other = tensor.clone();
    other[at].bitwise_xor_(128);
    EXPECT_NE(digest_of(Tensors{other}), before) << at;
  }
  EXPECT_NE(digest_of(Tensors{tensor, torch::zeros({0})}), before);
  EXPECT_NE(digest_of(Tensors{torch::full({1}, 0.0)}), digest_of(Tensors{torch::full({1}, -0.0)}));
}

TEST(Verification, TheOddOnesOutAreNamed) {
  using Digests = std::vector<std::uint64_t>;
  EXPECT_EQ(describe_divergence(Digests{5, 5, 5}), "");
  EXPECT_EQ(describe_divergence(Digests{5, 5, 6, 5}),
            "rank 2 has another result than ranks 0, 1 and 3");
  EXPECT_EQ(describe_divergence(Digests{5, 6, 6, 7}),
            "ranks 0 and 3 have another result than ranks 1 and 2");
  EXPECT_EQ(describe_divergence(Digests{5, 6}), "rank 1 has another result than rank 0");
}

}  // namespace
}  // namespace ddprun
