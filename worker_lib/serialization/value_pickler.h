// Pickles LibTorch's values as torch::jit::Pickler does, byte for byte, in a fraction of its time.
// LibTorch's pickler makes and looks up several texts for each tensor.
//
// Free functions without state; any thread.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

namespace ddprun {

// The pickle of a value, and the tensors whose storages belong to it. The storage of tensor i has
// the key i.
struct Pickled {
  std::string pickle;
  std::vector<torch::Tensor> tensors;
};

// Pickles dicts, lists and tuples of plain values and tensors. LibTorch's pickler is used if there
// is anything else, such as a quantized tensor. Throws what it throws, and kInvalidArgument for a
// text of 4 GiB or more.
Pickled pickle_of(const c10::IValue& top);
// Does the same without LibTorch's pickler. Returns nullopt if that one is needed.
std::optional<Pickled> pickle_plain(const c10::IValue& top);
// Calls LibTorch's pickler, with the same result.
Pickled pickle_by_libtorch(const c10::IValue& top);

}  // namespace ddprun
