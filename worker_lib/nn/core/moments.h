// Moments: the number of values of each channel, their mean, and the sum of their squared
// distances from it, merged from the moments of parts.
//
// The parts may have any sizes, and may be empty. The result depends on the order of the merges,
// in the last bits only. The same parts in the same order give the same bits. Method: Chan,
// Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
// 1979. It never subtracts two large numbers, so values far from zero lose no digits.
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
  // there are channels. Those of an empty part are not read.
  void merge(double count, std::span<const double> mean, std::span<const double> squares);

  double count() const { return count_; }
  const std::vector<double>& mean() const { return mean_; }
  // Returns the sums of squared distances: the variance is squares() / count().
  const std::vector<double>& squares() const { return squares_; }

 private:
  double count_ = 0;
  std::vector<double> mean_;
  std::vector<double> squares_;
};

}  // namespace ddprun
