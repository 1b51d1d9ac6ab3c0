// ShardOwners: assigns the state of each parameter to a rank.
//
// Within each parameter group the parameters are assigned in order of size, largest first. Each
// goes to the rank that has the fewest elements so far, as in
// torch.distributed.optim.ZeroRedundancyOptimizer (PyTorch 2.11). Of equal parameters or ranks
// the first one is taken, so every rank computes the same result by itself. Groups that are
// added later do not change earlier assignments.
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

  // Assigns the parameters of a group. sizes: in elements.
  void add_group(std::span<const std::int64_t> sizes);

  // Returns the owner of each parameter, over all groups in order.
  const std::vector<int>& owners() const { return owners_; }
  // Returns the number of elements of each rank.
  const std::vector<std::int64_t>& elements() const { return elements_; }

 private:
  std::vector<int> owners_;
  std::vector<std::int64_t> elements_;
};

}  // namespace ddprun
