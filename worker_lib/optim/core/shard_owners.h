// ShardOwners: which rank keeps the state of which parameter.
//
// Within each parameter group the largest parameter goes first, to the rank that has the fewest elements
// so far, as in torch.distributed.optim.ZeroRedundancyOptimizer (PyTorch 2.11). Of equals the first counts,
// parameter or rank, so every rank comes to the same result by itself. Groups that come
// later change nothing of what was dealt out before.
//
// Pure; one owner thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ddprun {

class ShardOwners {
 public:
  // world: at least 1.
  explicit ShardOwners(int world) : elements_(static_cast<std::size_t>(world)) {}

  // Deals out a parameter group; sizes: in elements.
  void add_group(std::span<const std::int64_t> sizes);

  // By parameter, over all groups in order.
  const std::vector<int>& owners() const { return owners_; }
  // By rank.
  const std::vector<std::int64_t>& elements() const { return elements_; }

 private:
  std::vector<int> owners_;
  std::vector<std::int64_t> elements_;
};

}  // namespace ddprun
