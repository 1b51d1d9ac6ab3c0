// Moments: how many values each channel has, their mean, and the sum of their squared distances from
// it, put together from the moments of parts.
//
// The parts may be of any sizes, empty ones too. The result depends on the order in which they are
// merged, in the last bits only; who merges the same parts in the same order has the same bits.
// Method: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
// Variances", 1979. It subtracts nothing large from something large, so that values far from zero
// lose no digits.
//
// Value type; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ddprun {

class Moments {
 public:
  explicit Moments(std::size_t channels) : mean_(channels), squares_(channels) {}

  // Adds a part that has `count` values in each channel. REQUIRES: as many means and squares as
  // there are channels. Those of an empty part are not looked at.
  void merge(double count, std::span<const double> mean, std::span<const double> squares);

  double count() const { return count_; }
  const std::vector<double>& mean() const { return mean_; }
  // Sums of squared distances: the variance is squares() / count().
  const std::vector<double>& squares() const { return squares_; }

 private:
  double count_ = 0;
  std::vector<double> mean_;
  std::vector<double> squares_;
};

}  // namespace ddprun
