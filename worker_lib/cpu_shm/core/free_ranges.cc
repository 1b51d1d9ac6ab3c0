#include "worker_lib/cpu_shm/core/free_ranges.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/assert.h"

namespace ddprun {

FreeRanges::FreeRanges(std::size_t bytes) {
  if (bytes >= kPage) gaps_.emplace(0, bytes / kPage * kPage);
}

std::size_t FreeRanges::in_pages(std::size_t bytes) {
  const std::size_t whole = std::max<std::size_t>(bytes, 1);
  if (whole > std::numeric_limits<std::size_t>::max() - kPage) return whole;  // it fits nowhere
  return (whole + kPage - 1) / kPage * kPage;
}

std::optional<std::size_t> FreeRanges::take(std::size_t bytes) {
  const std::size_t wanted = in_pages(bytes);
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    const auto [begin, end] = *gap;
    if (end - begin < wanted) continue;
    gaps_.erase(gap);
    if (end - begin > wanted) gaps_.emplace(begin + wanted, end);
    return begin;
  }
  return std::nullopt;
}

void FreeRanges::give_back(std::size_t begin, std::size_t bytes) {
  std::size_t end = begin + in_pages(bytes);
  auto next = gaps_.lower_bound(begin);
  DDPRUN_ASSERT(next == gaps_.end() || next->first >= end, "what is given back was taken");
  if (next != gaps_.end() && next->first == end) {
    end = next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    DDPRUN_ASSERT(before->second <= begin, "what is given back was taken");
    if (before->second == begin) {
      before->second = end;
      return;
    }
  }
  gaps_.emplace_hint(next, begin, end);
}

}  // namespace ddprun
