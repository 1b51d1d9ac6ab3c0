#include "worker_lib/optim/core/shard_owners.h"

#include <algorithm>
#include <numeric>

namespace ddprun {

void ShardOwners::add_group(std::span<const std::int64_t> sizes) {
  const std::size_t first = owners_.size();
  owners_.resize(first + sizes.size());
  std::vector<std::size_t> largest_first(sizes.size());
  std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
  std::ranges::stable_sort(largest_first, std::ranges::greater(),
                           [&](std::size_t i) { return sizes[i]; });
  for (const std::size_t i : largest_first) {
    const auto least = std::ranges::min_element(elements_);
    *least += sizes[i];
    owners_[first + i] = static_cast<int>(least - elements_.begin());
  }
}

}  // namespace ddprun
