// The contents of a checkpoint's data file: LibTorch's values as a zip archive that Python's
// torch.load(file, weights_only=True) reads as a dict, and back.
//
// Containers are dicts with string or integer keys and lists of anything, written without
// TorchScript type tags: torch::pickle_save's tags are what weights_only refuses. read_pickle() is
// for bytes whose checksum matched only: LibTorch's unpickler does not check what a hostile file
// says.
//
// Free functions without state; any thread. Failures throw DistError.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ddprun {

using PickleDict = c10::impl::GenericDict;

PickleDict make_string_dict();
PickleDict make_int_dict();
c10::impl::GenericList make_list();

// Writes the archive piece by piece. `write` must not throw.
void write_pickle(const c10::IValue& top,
                  const std::function<void(const void*, std::size_t)>& write);

// kCorrupt, naming `file`, if it is not such an archive.
c10::IValue read_pickle(std::vector<char> bytes, const std::string& file);

// The entry of a dict, or throws kCorrupt that names `file` and the key.
c10::IValue entry_of(const c10::IValue& dict, const std::string& key, const std::string& file);

// JSON as Python's own values. Throws kInvalidArgument for what a pickle cannot hold: integers past
// int64, text that is not UTF-8, binary values, nesting deeper than 64.
c10::IValue from_json(const nlohmann::json& value);
nlohmann::json to_json(const c10::IValue& value);

// Parameters and buffers by name: what Python calls the state dict, on the CPU.
PickleDict module_state(const torch::nn::Module& module);

// Names and tensors of parameters and buffers, in the order of Python's state dict.
std::vector<std::pair<std::string, torch::Tensor>> tensors_of(const torch::nn::Module& module);

// Copies a state dict into the module's own tensors. Throws kInvalidArgument that names `file` and
// the first name that is missing, left over, or of another shape or dtype; the module is then
// unchanged.
void load_module_state(torch::nn::Module& module, const c10::IValue& state,
                       const std::string& file);

// A tensor as it goes into a file: on the CPU, without history, and with no more storage than it
// needs (a slice would write all of what it is a slice of).
torch::Tensor tensor_for_file(const torch::Tensor& tensor);

}  // namespace ddprun
