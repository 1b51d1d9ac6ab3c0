// StateSnapshot: a training's state at one moment, so that it can be written while the training
// continues.
//
// The result of take() shares no memory with tensors that the program goes on changing. Tensors
// with other owners are copied, into memory that is kept for the next snapshot. So a snapshot
// costs one memcpy of the state. Tensors that were made for the snapshot (from a GPU, from a
// slice) are used as they are.
//
// One owner thread. Holds as much memory as the state has. Throws what LibTorch throws (memory).
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <unordered_map>
#include <utility>
#include <vector>

namespace ddprun {

class StateSnapshot {
 public:
  // Replaces the tensors of a tree of dicts, lists, tuples and tensors in CPU memory by copies, and
  // returns the tree. It must be destroyed before the next call, which writes into the same
  // memory.
  c10::IValue take(c10::IValue live);

 private:
  c10::IValue copy(const c10::IValue& value);
  torch::Tensor copy(const torch::Tensor& tensor);
  const torch::Tensor& copy_to_buffer(const torch::Tensor& tensor);

  // In the order of the last tree, which is usually that of the next one, too.
  std::vector<torch::Tensor> buffers_;
  std::size_t next_ = 0;
  // The copies of this tree, by the address of the original. A tensor that appears twice (tied
  // weights) is copied once and stays one tensor.
  std::unordered_map<const void*, std::vector<std::pair<torch::Tensor, torch::Tensor>>> copies_;
};

}  // namespace ddprun
