#include "worker_lib/nn/core/channel_loops.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

template <class T>
class ChannelLoops : public testing::Test {
 protected:
  // Returns whole eighths. Sums of their products are exact in float64, in any order.
  static std::vector<T> eighths(std::size_t count, std::size_t seed) {
    std::vector<T> values;
    for (std::size_t i = 0; i < count; ++i)
      values.push_back(static_cast<T>((i * 37 + seed * 11) % 61) / 8 - 3);
    return values;
  }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(ChannelLoops, Types);

// Numbers around the number of lanes, and also 0 and 1.
constexpr std::size_t kCounts[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 1000, 1003};

TYPED_TEST(ChannelLoops, SumsTakeEveryElementOnceAndAddToWhatIsThere) {
  for (const std::size_t count : kCounts) {
    const auto x = this->eighths(count, 1), g = this->eighths(count, 2);
    double sum = 3, squares = 4, of_g = 5, product = 6;
    add_moments(x.data(), count, 0.25, sum, squares);
    add_gradient_sums(g.data(), x.data(), count, 0.25, of_g, product);
    double expected[] = {3, 4, 5, 6};
    for (std::size_t i = 0; i < count; ++i) {
      const double distance = static_cast<double>(x[i]) - 0.25;
      expected[0] += distance;
      expected[1] += distance * distance;
      expected[2] += static_cast<double>(g[i]);
      expected[3] += static_cast<double>(g[i]) * distance;
    }
    EXPECT_EQ(sum, expected[0]) << count;
    EXPECT_EQ(squares, expected[1]) << count;
    EXPECT_EQ(of_g, expected[2]) << count;
    EXPECT_EQ(product, expected[3]) << count;
  }
}

// The element after the end must not change.
TYPED_TEST(ChannelLoops, ResultsAreRoundedOnce) {
  for (const std::size_t count : kCounts) {
    const auto x = this->eighths(count, 1), g = this->eighths(count, 2);
    std::vector<TypeParam> y(count + 1, 99), result(count + 1, 99);
    normalize_plane(x.data(), y.data(), count, 0.3, 1.7, -0.2);
    input_gradient_plane(g.data(), x.data(), result.data(), count, 0.3, 1.7, 0.1, -0.4);
    for (std::size_t i = 0; i < count; ++i) {
      const double distance = static_cast<double>(x[i]) - 0.3;
      EXPECT_EQ(y[i], static_cast<TypeParam>(distance * 1.7 + -0.2));
      EXPECT_EQ(result[i],
                static_cast<TypeParam>((static_cast<double>(g[i]) - 0.1 - distance * -0.4) * 1.7));
    }
    EXPECT_EQ(y[count], 99);
    EXPECT_EQ(result[count], 99);
  }
}

// A float sum of a million ones and one small value would lose the small value.
TEST(ChannelLoopsOfFloat, SumsAreFloat64) {
  std::vector<float> x(1 << 20, 1.0F);
  x.push_back(0x1p-20F);
  double sum = 0, squares = 0;
  add_moments(x.data(), x.size(), 0, sum, squares);
  EXPECT_EQ(sum, 0x1p20 + 0x1p-20);
}

}  // namespace
}  // namespace ddprun
