// Times and percentiles for benchmarks. Any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "base/clock.h"

namespace ddprun::benchmarks {

inline double ms_since(TimePoint begin) {
  return std::chrono::duration<double, std::milli>(BootClock::now() - begin).count();
}

// Returns a percentile of at least one value. part: 0 is the least value, 0.5 the median, 1 the
// greatest.
inline double percentile(std::vector<double> values, double part) {
  const auto place =
      values.begin() + static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

}  // namespace ddprun::benchmarks
