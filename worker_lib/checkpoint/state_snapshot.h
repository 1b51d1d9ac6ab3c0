// StateSnapshot: a training's state as it was at one moment, so that it can be written while the
// training goes on.
//
// What take() returns shares no memory with what the program goes on changing: tensors that anybody
// else holds are copied, into memory that is kept for the next time, so that a snapshot costs one
// memcpy of the state; those that were made for it (from a GPU, of a slice) are taken as they are.
//
// One owner thread. Holds as much memory as the state has. Throws what LibTorch throws (memory).
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <map>
#include <vector>

namespace ddprun {

class StateSnapshot {
 public:
  // A tree of dicts, lists, tuples and tensors in the CPU's memory. What is returned is to be gone before the
  // next call: that writes into the same memory.
  c10::IValue take(const c10::IValue& live);

 private:
  c10::IValue copy(const c10::IValue& value);
  torch::Tensor copy(const torch::Tensor& tensor);

  // In the order of the last tree, which is that of the next one as a rule.
  std::vector<torch::Tensor> buffers_;
  std::size_t next_ = 0;
  // Of this tree: what is in it twice (tied weights) is copied once, and stays one.
  std::map<const void*, std::vector<std::pair<torch::Tensor, torch::Tensor>>> copies_;
};

}  // namespace ddprun
