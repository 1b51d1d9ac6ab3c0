#include "worker_lib/tensorboard/core/histogram.h"

#include <algorithm>
#include <cmath>

namespace ddprun {
namespace {

std::vector<double> bucket_limits() {
  std::vector<double> positive;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
  std::vector<double> limits;
  for (std::size_t i = positive.size(); i > 0; --i) limits.push_back(-positive[i - 1]);
  limits.push_back(0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  return limits;
}

template <class Number>
HistogramCounts count_values(std::span<const Number> values) {
  // Never destroyed: a detached thread may count while the process exits.
  static const std::vector<double>& limits = *new std::vector<double>(bucket_limits());
  HistogramCounts result;
  std::vector<double> counts(limits.size() - 1);
  for (const Number number : values) {
    const double value = number;
    if (!std::isfinite(value)) continue;
    result.min = result.count == 0 ? value : std::min(result.min, value);
    result.max = result.count == 0 ? value : std::max(result.max, value);
    ++result.count;
    result.sum += value;
    result.sum_squares += value * value;
    const auto above = std::upper_bound(limits.begin() + 1, limits.end() - 1, value);
    ++counts[static_cast<std::size_t>(above - limits.begin()) - 1];
  }
  if (result.count == 0) return result;
  const auto is_used = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), is_used);
  const auto end = std::find_if(counts.rbegin(), counts.rend(), is_used).base();
  result.counts.push_back(0);
  result.counts.insert(result.counts.end(), first, end);
  const auto lowest = limits.begin() + (first - counts.begin());
  result.limits.assign(lowest, lowest + static_cast<std::ptrdiff_t>(result.counts.size()));
  return result;
}

}  // namespace

HistogramCounts count_in_buckets(std::span<const float> values) { return count_values(values); }
HistogramCounts count_in_buckets(std::span<const double> values) { return count_values(values); }

}  // namespace ddprun
