// ShardAssignment: assigns to each rank its part of a state that is the same on all ranks, when
// each rank writes its share (CheckpointOptions::sharded).
//
// Parameters and the optimizer's states are assigned in order of size, largest first, to the
// rank that has the fewest bytes so far. Every rank computes the same result by itself. Tensors
// that share memory stay together, so that they share it in the file. Buffers are rank 0's, and
// so is all state that may differ by rank: the file has rank 0's version. States that an
// optimizer has sharded over the ranks are written by the ranks that hold them. If it has sharded
// them over parts of the world, these are the ranks of rank 0's part.
//
// A value; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ddprun/checkpoint.h"

namespace ddprun {

class ShardAssignment {
 public:
  // ranks_are_equal: parameters and the optimizer's state are the same on all ranks. world_rank_0:
  // rank 0's rank in the world.
  ShardAssignment(const TrainingState& state, int rank, int world_size, bool ranks_are_equal,
                  int world_rank_0 = 0);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  // Returns whether this rank writes the model's tensor of this name.
  bool has_tensor(const std::string& name) const {
    const auto owner = owner_of_tensor_.find(name);
    return rank_ == (owner == owner_of_tensor_.end() ? 0 : owner->second);
  }
  // index: of the parameter, over the optimizer's groups in order.
  bool has_optimizer_state(std::size_t index) const { return owner_of_state_[index] == rank_; }

 private:
  static constexpr int kNone = -1;

  int rank_;
  int world_size_;
  std::map<std::string, int> owner_of_tensor_;  // all others are rank 0's
  std::vector<int> owner_of_state_;             // kNone: another rank than this one
};

}  // namespace ddprun
