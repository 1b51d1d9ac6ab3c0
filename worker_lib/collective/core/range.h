// Range: a half-open interval of indices, and its cut into parts of nearly equal size. Pure;
// thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>

namespace ddprun {

struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t size() const { return end - begin; }
  bool empty() const { return end == begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Returns the common part of both; empty if there is none.
inline Range common_part(Range left, Range right) {
  const std::size_t begin = std::max(left.begin, right.begin);
  return {begin, std::max(begin, std::min(left.end, right.end))};
}

// Returns part `index` of `parts` parts of `whole`. Every part but the last non-empty one is a
// multiple of `quantum` long. Their lengths differ by at most one quantum (the last may be
// shorter), and they follow one another without a gap. For short ranges the last parts are
// empty.
Range cut(Range whole, std::size_t parts, std::size_t index, std::size_t quantum);

}  // namespace ddprun
