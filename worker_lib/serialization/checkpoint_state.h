// The contents of a checkpoint's data file: LibTorch's values as a zip archive that Python's
// torch.load(file, weights_only=True) reads as a dict, and back.
//
// Containers are dicts with string or integer keys and lists of anything, written without
// TorchScript type tags: torch::pickle_save's tags are what weights_only refuses. What is read goes
// through serialization/core/state_archive.h, never through LibTorch's unpickler, which believes what a file says.
//
// Free functions without state; any thread. Failures throw DistError.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/process_group.h"
#include "ddprun/state_file.h"
#include "worker_lib/serialization/core/state_archive.h"

namespace ddprun {

using PickleDict = c10::impl::GenericDict;

PickleDict make_string_dict();
PickleDict make_int_dict();
c10::impl::GenericList make_list();

// Takes a piece of an archive.
using WritePiece = std::function<void(const void* data, std::size_t bytes)>;

// Writes the archive piece by piece.
void write_pickle(const c10::IValue& top, const WritePiece& write);

// read_state_archive(), throwing its Error as a DistError that names `file`.
StateArchive open_state_archive(std::string_view bytes, const std::string& file, RecordCrcs crcs);

// The tensors of one archive, each storage of which is made once: what shared one shares it again.
class ArchiveTensors {
 public:
  // The archive must outlive this.
  explicit ArchiveTensors(const StateArchive& archive) : archive_(archive) {}
  // On the CPU, with memory of its own. kUnsupported: a dtype that this LibTorch has not.
  torch::Tensor make(const PickleTensor& tensor);

 private:
  const StateArchive& archive_;
  std::map<std::string, c10::Storage> storages_;
};

// What a file holds as LibTorch's values; `bytes` are its bytes. Throws DistError that names `file`:
// kCorrupt or kUnsupported as read_state_archive(), kUnsupported too for what LibTorch's containers
// cannot hold (integers past 64 bits, keys that are tuples, sets).
c10::IValue read_pickle(std::string_view bytes, const std::string& file,
                        RecordCrcs crcs = RecordCrcs::kCheck);

// A value of the archive as LibTorch's. Throws as read_pickle().
c10::IValue to_ivalue(const StateArchive& archive, const PickleNode& node, ArchiveTensors& tensors,
                      const std::string& file);

// The entry of a dict, or throws kCorrupt that names `file` and the key.
c10::IValue entry_of(const c10::IValue& dict, const std::string& key, const std::string& file);

// The entry of a dict, or nullopt where there is none (or no dict).
std::optional<c10::IValue> find_entry(const c10::IValue& dict, const std::string& key);

// What a value of a file must be, or throws kCorrupt that names `file`, `what` it is and what it was
// expected to be.
std::int64_t as_integer(const c10::IValue& value, const std::string& what, const std::string& file);
std::string as_text(const c10::IValue& value, const std::string& what, const std::string& file);
PickleDict as_dict(const c10::IValue& value, const std::string& what, const std::string& file);
std::vector<c10::IValue> as_list(const c10::IValue& value, const std::string& what,
                                 const std::string& file);
torch::Tensor as_tensor(const c10::IValue& value, const std::string& what, const std::string& file);

// JSON as Python's own values. Throws kInvalidArgument for what a pickle cannot hold: integers past
// int64, text that is not UTF-8, binary values, nesting deeper than 64.
c10::IValue from_json(const nlohmann::json& value);
// Throws kCorrupt for what is no JSON; what: of which file, for the error.
nlohmann::json to_json(const c10::IValue& value, const std::string& what = "a JSON value");

// Parameters and buffers by name: what Python calls the state dict, on the CPU. keeps: which are
// wanted, by name; empty: all are.
PickleDict module_state(const torch::nn::Module& module,
                        const std::function<bool(const std::string&)>& keeps = {});

// Names and tensors of parameters and buffers, in the order of Python's state dict.
std::vector<std::pair<std::string, torch::Tensor>> tensors_of(const torch::nn::Module& module);

// 16 hexadecimal digits that two models share if and only if load_into() takes the one's state dict
// for the other.
std::string model_hash(const torch::nn::Module& module);

// load_into() of ddprun/state_file.h. doing, whose: for the error ("load ...", "the file").
IncompatibleKeys copy_into_module(torch::nn::Module& module, const StateDict& state, Strict strict,
                                  const std::string& doing, const std::string& whose);

// Copies a state dict into the module's own tensors. Throws kInvalidArgument that names `file` and
// what is missing, left over, or of another shape or dtype; the module is then unchanged.
void load_module_state(torch::nn::Module& module, const c10::IValue& state,
                       const std::string& file);

// A tensor as it goes into a file: on the CPU, without history, and with no more storage than it
// needs (a slice would write all of what it is a slice of).
torch::Tensor tensor_for_file(const torch::Tensor& tensor);

// The generator state with which a rank goes on: its own of `saved`, which is not empty. A rank that
// the world did not have then gets one that follows from the first rank's, the same each time and
// another for each rank.
torch::Tensor generator_of_rank(const std::vector<torch::Tensor>& saved, std::size_t rank);

// Of every rank, on rank 0 (elsewhere empty). Collective. what: for errors. Throws as
// read_pickle().
std::vector<c10::IValue> gather_values(ProcessGroup& group, const PickleDict& own,
                                       const std::string& what,
                                       std::optional<Timeout> timeout = {});

}  // namespace ddprun
