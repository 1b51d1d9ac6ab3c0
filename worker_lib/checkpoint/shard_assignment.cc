#include "worker_lib/checkpoint/shard_assignment.h"

#include <torch/types.h>

#include "worker_lib/optim/core/shard_owners.h"
#include "worker_lib/serialization/optimizer_state.h"

namespace ddprun {

ShardAssignment::ShardAssignment(const TrainingState& state, int rank, int world_size,
                                 bool ranks_are_equal, int world_rank_0)
    : rank_(rank), world_size_(world_size) {
  ShardOwners owners(ranks_are_equal ? world_size : 1);
  if (state.model) {
    // Names of tensors that share memory, in the order of the first.
    std::vector<std::vector<std::string>> units;
    std::vector<std::int64_t> bytes;
    std::map<const void*, std::size_t> unit_of;
    for (const auto& item : state.model->named_parameters()) {
      const torch::Tensor& tensor = item.value();
      if (!tensor.defined()) continue;
      const auto [unit, is_new] =
          unit_of.try_emplace(tensor.storage().unsafeGetStorageImpl(), units.size());
      if (is_new) {
        units.emplace_back();
        bytes.push_back(0);
      }
      units[unit->second].push_back(item.key());
      bytes[unit->second] =
          std::max(bytes[unit->second], static_cast<std::int64_t>(tensor.nbytes()));
    }
    owners.add_group(bytes);
    for (std::size_t i = 0; i < units.size(); ++i)
      for (const std::string& name : units[i]) owner_of_tensor_[name] = owners.owners()[i];
  }
  if (!state.optimizer) return;
  if (is_sharded(*state.optimizer)) {
    const bool is_in_part_of_0 = has_shard(*state.optimizer, world_rank_0);
    for (const bool keeps : keeps_states(*state.optimizer))
      owner_of_state_.push_back(keeps && is_in_part_of_0 ? rank_ : kNone);
    return;
  }
  std::vector<std::int64_t> bytes;
  for (const auto& group : state.optimizer->param_groups())
    for (const torch::Tensor& parameter : group.params())
      bytes.push_back(static_cast<std::int64_t>(parameter.nbytes()));
  const std::size_t first = owners.owners().size();
  owners.add_group(bytes);
  owner_of_state_.assign(owners.owners().begin() + static_cast<std::ptrdiff_t>(first),
                         owners.owners().end());
}

}  // namespace ddprun
