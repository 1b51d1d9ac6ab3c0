// State dicts as files that Python and C++ share. load_state_dict() reads what
// torch.save(module.state_dict(), path) writes. torch.load(path, weights_only=True) reads what
// save_state_dict() writes.
//
//   ddprun::load_into(*net, ddprun::load_state_dict("pretrained.pt"));
//   ddprun::save_state_dict("weights.pt", *net);
//
// LibTorch's torch::save writes TorchScript archives, which Python does not accept as state
// dicts, and its pickle_load refuses every OrderedDict. These files have the zip format of
// PyTorch 1.6 and later. A small unpickler reads them and allows what weights_only=True allows:
// no code in a file is ever run. Every tensor is checked against its storage, and every record
// against its CRC. docs/reference/file_formats.md has the rules.
//
// Not collective: a rank may call these functions alone. Reading holds the whole file in memory
// in addition to the tensors. Any thread may call them, as long as no other thread uses the same
// module. They throw DistError: kCorrupt for a damaged file, kUnsupported for content that is
// not allowed or not supported, kSystem if the file cannot be opened. The message names the
// file.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "ddprun/error.h"

namespace ddprun {

// Names and tensors in the order of Module.state_dict(), like the OrderedDict of Python.
using StateDict = torch::OrderedDict<std::string, torch::Tensor>;

// Reads a state dict: the whole file, or the entry "model", "state_dict" or "model_state_dict"
// of a dict in it (also of CheckpointManager's files). The tensors are on the CPU and have the
// dtype, shape and strides of the file. Tensors that shared a storage share one again. If every
// name begins with "module." (a file of PyTorch's DistributedDataParallel), the prefix is
// removed.
StateDict load_state_dict(const std::string& path);

// Whether load_into() requires the names to agree, like the argument of
// Module.load_state_dict().
enum class Strict { kYes, kNo };

// Names that load_into() with Strict::kNo skipped, like the result of Module.load_state_dict().
struct IncompatibleKeys {
  std::vector<std::string> missing;     // in the module, not in the state dict
  std::vector<std::string> unexpected;  // in the state dict, not in the module
};

// Copies the tensors into the module's own parameters and buffers of the same names, on their
// devices. So an optimizer keeps valid references. Shapes and dtypes must agree. (PyTorch would
// convert the dtype silently; convert the tensor first if you want that.) Throws kInvalidArgument,
// which names the first few tensors that are missing, unexpected, or of another shape or dtype. The
// module is then unchanged.
IncompatibleKeys load_into(torch::nn::Module& module, const StateDict& state,
                           Strict strict = Strict::kYes);

// Fills the optimizer's state and options from the entry "optimizer" or "optimizer_state_dict"
// of a file, or from a file that is an optimizer's state_dict() itself: SGD, Adam, AdamW,
// RMSprop or Adagrad of Python or C++. Throws kInvalidArgument if the file has other parameters,
// or another class (only CheckpointManager's files record the class). The optimizer may then be
// filled in part.
void load_optimizer_state_dict(const std::string& path, torch::optim::Optimizer& optimizer);

// Writes the parameters and buffers of a module, or any tensors, as a plain state dict. `path`
// always holds either a complete file or the previous one, also after a power failure. The
// tensors are written as CPU tensors, without history.
void save_state_dict(const std::string& path, const torch::nn::Module& module);
void save_state_dict(const std::string& path, const StateDict& state);

}  // namespace ddprun
