// State dicts as files that Python and C++ share: what torch.save(module.state_dict(), path) writes is
// read here, what save_state_dict() writes is read there by torch.load(path, weights_only=True).
//
//   ddprun::load_into(*net, ddprun::load_state_dict("pretrained.pt"));
//   ddprun::save_state_dict("weights.pt", *net);
//
// LibTorch's torch::save writes TorchScript archives, which are no state dicts to Python, and its
// pickle_load refuses every OrderedDict. These are of the zip format of PyTorch 1.6 and later, read by a small
// unpickler that allows what weights_only=True allows: nothing in a file is ever run, every tensor
// is checked against its storage, every record against its CRC. docs/checkpoints.md has the rules.
//
// Not collective: a rank may call them alone. Reading holds the whole file in memory besides the
// tensors. Any thread, as long as no other uses the same module. Throws DistError: kCorrupt
// for a damaged file, kUnsupported for one of what is not allowed or not supported, kSystem where it
// cannot be opened; the message names the file.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "ddprun/error.h"

namespace ddprun {

// Names and tensors in the order of Module.state_dict(): what Python's class of this name holds.
using StateDict = torch::OrderedDict<std::string, torch::Tensor>;

// Reads a state dict: the whole file, or the entry "model", "state_dict" or "model_state_dict" of a
// dict around it (of CheckpointManager's files too). The tensors are on the CPU, of the file's dtype,
// shape and strides; those that shared a storage share one again. Where every name begins with
// "module." (a DistributedDataParallel of PyTorch was saved), that is taken away.
StateDict load_state_dict(const std::string& path);

// Whether load_into() demands that names agree, like the argument of Module.load_state_dict().
enum class Strict { kYes, kNo };

// What load_into() with Strict::kNo passed over, like the result of Module.load_state_dict().
struct IncompatibleKeys {
  std::vector<std::string> missing;     // the module has them, the state dict has not
  std::vector<std::string> unexpected;  // the other way round
};

// Copies the tensors into the module's own parameters and buffers of the same names, on their
// devices: an optimizer keeps its references. Shape and dtype must agree (PyTorch would convert the
// dtype without a word; convert the tensor first where that is meant).
// kInvalidArgument names what is missing, unexpected, and of another shape or dtype, the first few
// of each; the module is then unchanged.
IncompatibleKeys load_into(torch::nn::Module& module, const StateDict& state,
                           Strict strict = Strict::kYes);

// Fills the optimizer's state and options from the entry "optimizer" or "optimizer_state_dict" of a file,
// or from a file that is an optimizer's state_dict() itself: SGD, Adam, AdamW, RMSprop, Adagrad of
// Python or C++. kInvalidArgument where it is of other parameters, or of another class (which only
// CheckpointManager's files say). The optimizer may then be filled in part.
void load_optimizer_state_dict(const std::string& path, torch::optim::Optimizer& optimizer);

// Writes the parameters and buffers of a module, or any tensors, as a plain state dict. Under `path`
// is a whole file or what was there before, also after a power failure. The tensors are
// written from the CPU, without history.
void save_state_dict(const std::string& path, const torch::nn::Module& module);
void save_state_dict(const std::string& path, const StateDict& state);

}  // namespace ddprun
