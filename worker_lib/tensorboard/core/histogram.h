// Counts values in TensorBoard's default buckets, as SummaryWriter.add_histogram of PyTorch 2.11
// does (torch/utils/tensorboard: default_bins, make_histogram). The bucket limits are 0 and
// +-1e-12 * 1.1^k below 1e20. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ddprun {

// The fields of HistogramProto (tensorflow/core/framework/summary.proto). Bucket i has the values
// from limits[i - 1] (included) to limits[i]. The first bucket is empty: it gives the lowest limit.
struct HistogramCounts {
  double min = 0;
  double max = 0;
  std::int64_t count = 0;
  double sum = 0;
  double sum_squares = 0;
  std::vector<double> limits;
  std::vector<double> counts;
};

// Counts the values in buckets. NaN and infinite values are left out. Values beyond the outermost
// limits count in the outermost buckets. If no value is finite, count is 0 and there are no
// buckets.
HistogramCounts count_in_buckets(std::span<const float> values);
HistogramCounts count_in_buckets(std::span<const double> values);

}  // namespace ddprun
