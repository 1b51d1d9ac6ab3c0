// Range: a half-open interval of indices, and how one is cut into near-equal parts. Pure; any
// thread.
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

// What both have; empty if that is nothing.
inline Range common_part(Range left, Range right) {
  const std::size_t begin = std::max(left.begin, right.begin);
  return {begin, std::max(begin, std::min(left.end, right.end))};
}

// Part `index` of `parts` parts of `whole`. Every part but the last non-empty one is a multiple of
// `quantum` long, their lengths differ by at most one quantum (the last may be shorter), and they
// follow one another without a gap. For short ranges the last parts are empty.
Range cut(Range whole, std::size_t parts, std::size_t index, std::size_t quantum);

}  // namespace ddprun
