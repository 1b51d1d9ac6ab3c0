// StateSnapshot: a training's state at one moment, so that it can be written while the training
// continues.
//
// A snapshot shares no memory with tensors that the program goes on changing. Tensors with other
// owners are copied, into memory that is kept for the next snapshot. So a snapshot costs one memcpy
// of the state. Tensors that were made for the snapshot (from a GPU, from a slice) are used as they
// are. A tensor of the program in CPU memory that appears twice (tied weights) is copied once and
// stays one tensor. Tensors of a GPU, and those that only the tree has, may be stored apart, with
// the same values.
//
//   snapshot.begin();
//   dict.insert(name, snapshot.tensor_for_file(live));
//   other = snapshot.copy(other);
//   snapshot.end();
//
// One thread at a time. Holds as much memory as the state has. Throws what LibTorch throws
// (memory).
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/flat_hash_map.h>
#include <torch/types.h>

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ddprun {

class StateSnapshot {
 public:
  // Begins a snapshot. The last one must be destroyed, because this one has the same memory.
  void begin();
  // Returns tensor_for_file() of checkpoint_state.h, copied. `live` must exist until end(), because
  // it is known by its address.
  torch::Tensor tensor_for_file(const torch::Tensor& live);
  // Replaces the tensors of a tree of dicts, lists, tuples and tensors in CPU memory by copies, and
  // returns the tree. It must have no tensor of this snapshot yet.
  c10::IValue copy(const c10::IValue& value);
  void end();

  // The dicts of a checkpoint's contents that may have many entries.
  struct Dicts {
    std::optional<c10::impl::GenericDict> model = {}, optimizer_states = {};
  };
  // Keeps the keys of contents that were written, for the next save. The contents must belong to
  // nothing else. Keeps none if it fails (memory).
  void give_back(const c10::IValue& contents) noexcept;
  // Returns what the last give_back() kept, once. All values are None, also those of dicts in it.
  Dicts take_dicts() { return std::exchange(dicts_, {}); }

  // Takes a snapshot of one tree.
  c10::IValue take(const c10::IValue& live);

 private:
  torch::Tensor copy(const torch::Tensor& tensor);
  torch::Tensor copy_once(const torch::Tensor& tensor);
  const torch::Tensor& copy_to_buffer(const torch::Tensor& tensor);

  // In the order of the last tree, which is usually that of the next one, too.
  std::vector<torch::Tensor> buffers_;
  std::size_t next_ = 0;
  // The copies of this snapshot, by the address of the original. Of a dense tensor: which buffer.
  ska::flat_hash_map<const void*, std::size_t> copies_;
  // More tensors at such an address, and others: the original and the copy.
  std::unordered_map<const void*, std::vector<std::pair<torch::Tensor, torch::Tensor>>>
      other_copies_;
  Dicts dicts_;
};

}  // namespace ddprun
