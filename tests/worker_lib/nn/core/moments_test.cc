#include "worker_lib/nn/core/moments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace ddprun {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;

struct Part {
  double count, mean, squares;
};

// Computes the moments in long double and in two passes.
Part moments_of(const std::vector<double>& values) {
  long double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const long double mean = values.empty() ? 0 : sum / static_cast<long double>(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {static_cast<double>(values.size()), static_cast<double>(mean),
          static_cast<double>(squares)};
}

void merge(Moments& moments, const Part& part) {
  moments.merge(part.count, {&part.mean, 1}, {&part.squares, 1});
}

TEST(Moments, OfNothingHaveNoValues) {
  const Moments moments(2);
  EXPECT_EQ(moments.count(), 0);
  EXPECT_THAT(moments.mean(), ElementsAre(0, 0));
  EXPECT_THAT(moments.squares(), ElementsAre(0, 0));
}

TEST(Moments, OfOnePartAreThatPart) {
  Moments moments(2);
  const double mean[] = {1.1, -3.3}, squares[] = {0.7, 5.5};
  moments.merge(3, mean, squares);
  EXPECT_EQ(moments.count(), 3);
  EXPECT_THAT(moments.mean(), ElementsAre(1.1, -3.3));
  EXPECT_THAT(moments.squares(), ElementsAre(0.7, 5.5));
}

TEST(Moments, AnEmptyPartChangesNothingWhateverItsNumbers) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Moments moments(1);
  merge(moments, {0, nan, nan});
  merge(moments, {2, 5, 8});
  merge(moments, {0, nan, nan});
  EXPECT_EQ(moments.count(), 2);
  EXPECT_THAT(moments.mean(), ElementsAre(5));
  EXPECT_THAT(moments.squares(), ElementsAre(8));
}

TEST(Moments, PartsOfOneValueEachGiveTheVariance) {
  Moments moments(1);
  for (const double value : {2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0}) merge(moments, {1, value, 0});
  EXPECT_THAT(moments.mean(), ElementsAre(DoubleEq(5)));
  EXPECT_THAT(moments.squares(), ElementsAre(DoubleEq(32)));  // the variance is 4
}

// The values have a spread of 1 around 1e8. In float64 their squares have no digits left for
// it.
TEST(Moments, ValuesFarFromZeroKeepTheirSpread) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> spread(1e8, 1);
    std::uniform_int_distribution<int> size(0, 40);
    Moments moments(1);
    std::vector<double> all;
    for (int part = 0; part < 10; ++part) {
      std::vector<double> values(static_cast<std::size_t>(size(random)));
      for (double& value : values) value = spread(random);
      merge(moments, moments_of(values));
      all.insert(all.end(), values.begin(), values.end());
    }
    const Part expected = moments_of(all);
    EXPECT_EQ(moments.count(), expected.count) << "seed " << seed;
    EXPECT_NEAR(moments.mean()[0], expected.mean, 1e-7) << "seed " << seed;
    EXPECT_NEAR(moments.squares()[0] / expected.squares, 1, 1e-7) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ddprun
