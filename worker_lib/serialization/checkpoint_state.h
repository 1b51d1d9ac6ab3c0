// Converts the contents of a checkpoint's data file: LibTorch's values to a zip archive that
// Python's torch.load(file, weights_only=True) reads as a dict, and back.
//
// Containers are dicts with string or integer keys, and lists of anything. They are written
// without TorchScript type tags, because weights_only refuses the tags of torch::pickle_save.
// Reads use serialization/core/state_archive.h, never LibTorch's unpickler, which trusts the
// file.
//
// Free functions without state; any thread. Failures throw DistError.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "ddprun/process_group.h"
#include "ddprun/state_file.h"
#include "worker_lib/serialization/core/state_archive.h"
#include "worker_lib/serialization/core/zip_writer.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {

using PickleDict = c10::impl::GenericDict;

PickleDict make_string_dict();
PickleDict make_int_dict();
c10::impl::GenericList make_list();

// Returns the bytes of a tensor's storage.
std::string_view bytes_of_storage(const torch::Tensor& tensor);

// Writes the archive piece by piece.
void write_pickle(const c10::IValue& top, const WriteBytes& write);

// Calls read_state_archive() and throws its Error as a DistError that names `file`.
StateArchive open_state_archive(std::string_view bytes, const std::string& file, RecordCrcs crcs);

// ArchiveTensors: makes the tensors of one archive. Each storage is made once, so tensors that
// shared a storage share one again.
class ArchiveTensors {
 public:
  // Makes a storage for the archive's bytes, on any device.
  using MakeStorage = std::function<c10::Storage(std::string_view bytes)>;

  // Storages are copies of the archive's bytes, on the CPU.
  ArchiveTensors();
  explicit ArchiveTensors(MakeStorage make_storage) : make_storage_(std::move(make_storage)) {}
  // Makes a tensor. kUnsupported: this LibTorch lacks the dtype.
  torch::Tensor make(const PickleTensor& tensor);

 private:
  const MakeStorage make_storage_;
  std::vector<c10::Storage> storages_;  // by the number of the record
};

// Returns the contents of a file as LibTorch's values. bytes: the bytes of the file. Throws
// DistError that names `file`: kCorrupt or kUnsupported as read_state_archive(), and
// kUnsupported for contents that LibTorch's containers cannot hold (integers beyond 64 bits,
// tuples as keys, sets).
c10::IValue read_pickle(std::string_view bytes, const std::string& file,
                        RecordCrcs crcs = RecordCrcs::kCheck);

// Converts a value of the archive to LibTorch's. Throws as read_pickle().
c10::IValue to_ivalue(const StateArchive& archive, const PickleNode& node, ArchiveTensors& tensors,
                      const std::string& file);

// Throws kCorrupt, which names `file`, for keys that were chosen to have one place. LibTorch's hash
// table doubles until each key is near its place, so it would take all memory for them. Call it
// before keys of a file are inserted into a dict. hashes: of all keys that the dict will have.
void expect_places(const std::vector<std::size_t>& hashes, const std::string& file);

// Throws kSystem for a tensor without memory (checkpoint/restore_targets.h), which must not be
// read.
void expect_memory(const torch::Tensor& tensor);

// SavedValue: a value of a file. Its errors are kCorrupt and name the file and the value.
struct SavedValue {
  c10::IValue value;
  std::string file;
  std::string name = {};

  // Returns the entry of a dict, or throws.
  SavedValue at(const std::string& key) const;
  // Returns the entry of a dict; nullopt if there is none, or if this is no dict.
  std::optional<SavedValue> find(const std::string& key) const;

  // Return the value as this type, or throw.
  std::int64_t integer() const;
  std::string text() const;
  PickleDict dict() const;
  std::vector<c10::IValue> list() const;
  torch::Tensor tensor() const;
  nlohmann::json json() const;
  // Throws unless the value has the expected type.
  void expect(bool is_right, const char* expected) const;

  // Throws kInvalidArgument: the file cannot be restored; the parts say why, see concat().
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... why) const {
    ddprun::refuse(concat("restore ", file, ": ", why...));
  }
};

// Converts JSON to Python's own values. Throws kInvalidArgument for values that a pickle cannot
// hold: integers beyond int64, text that is not UTF-8, binary values, nesting deeper than 64.
c10::IValue from_json(const nlohmann::json& value);
// Throws kCorrupt for a value that is not JSON. what: the file, for the error.
nlohmann::json to_json(const c10::IValue& value, const std::string& what = "a JSON value");

// Returns a tensor for a file: on the CPU, without history, and with no more storage than it
// needs (a slice would write the whole tensor).
torch::Tensor tensor_for_file(const torch::Tensor& tensor);
PickleDict tensors_for_file(const std::map<std::string, torch::Tensor>& tensors);
// A function with the result of tensor_for_file(), or a copy of it.
using TensorForFile = std::function<torch::Tensor(const torch::Tensor&)>;

// Returns parameters and buffers by name, on the CPU (Python's state dict). keeps: selects
// names; empty: all. old: an earlier result to refill (refilled_dict.h).
PickleDict module_state(const torch::nn::Module& module,
                        const std::function<bool(const std::string&)>& keeps = {},
                        const TensorForFile& for_file = tensor_for_file,
                        std::optional<PickleDict> old = {});

// Returns names and tensors of parameters and buffers, in the order of Python's state dict.
std::vector<std::pair<std::string, torch::Tensor>> tensors_of(const torch::nn::Module& module);

// Returns 16 hexadecimal digits. Two models share them if and only if load_into() accepts the
// state dict of one for the other.
std::string model_hash(const torch::nn::Module& module);
// Returns the same of the module whose module_state() this is.
std::string model_hash(const PickleDict& module_state);

// Implements load_into() of ddprun/state_file.h. doing, whose: for the error ("load ...", "the
// file").
IncompatibleKeys copy_into_module(torch::nn::Module& module, const StateDict& state, Strict strict,
                                  const std::string& doing, const std::string& whose);

// Copies a tensor of the same shape, unless both are the same memory.
void copy_unless_same(torch::Tensor& target, const torch::Tensor& value);

// Throws what load_module_state() throws for this state; changes nothing. It reads no tensor.
void expect_module_state(const torch::nn::Module& module, const c10::IValue& state,
                         const std::string& file);

// Copies a state dict into the module's own tensors. Tensors that have the same memory already are
// left out. Throws kInvalidArgument that names `file`
// and what is missing, unexpected, or of another shape or dtype. The module is then unchanged.
void load_module_state(torch::nn::Module& module, const c10::IValue& state,
                       const std::string& file);

// Returns the generator state with which a rank continues: its own of `saved`, which is not
// empty. A rank that the saved world did not have gets a state derived from the first rank's.
// That state is the same each time, and differs by rank.
torch::Tensor generator_of_rank(const std::vector<torch::Tensor>& saved, std::size_t rank);

// Returns the values of every rank on rank 0; elsewhere an empty list. Collective. what: for
// errors. Throws as read_pickle().
std::vector<c10::IValue> gather_values(ProcessGroup& group, const PickleDict& own,
                                       const std::string& what,
                                       std::optional<Timeout> timeout = {});

}  // namespace ddprun
