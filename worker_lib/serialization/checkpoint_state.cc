#include "worker_lib/serialization/checkpoint_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <span>

#include "base/joined.h"
#include "worker_lib/group/tensor_facts.h"
#include "worker_lib/serialization/core/archive_writer.h"
#include "worker_lib/serialization/refilled_dict.h"
#include "worker_lib/serialization/value_pickler.h"
#include "worker_lib/util/sha256.h"

namespace ddprun {
namespace {

constexpr int kMaxJsonDepth = 64;

template <class... Parts>
[[noreturn]] void corrupt(const std::string& file, const Parts&... what) {
  refuse(concat("read ", file, ": ", what...), DistError::Kind::kCorrupt);
}

c10::IValue from_json(const nlohmann::json& value, int depth) {
  using Type = nlohmann::json::value_t;
  if (depth > kMaxJsonDepth)
    refuse(concat("save a JSON value: it is nested deeper than ", kMaxJsonDepth));
  switch (value.type()) {
    case Type::null: return {};
    case Type::boolean: return value.get<bool>();
    case Type::number_integer: return value.get<std::int64_t>();
    case Type::number_unsigned:
      if (value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
        refuse("save a JSON value: " + value.dump() + " does not fit into 64 bits with a sign");
      return value.get<std::int64_t>();
    case Type::number_float: return value.get<double>();
    case Type::string: return value.get_ref<const std::string&>();
    case Type::array: {
      auto list = make_list();
      for (const auto& element : value) list.push_back(from_json(element, depth + 1));
      return list;
    }
    case Type::object: {
      auto dict = make_string_dict();
      for (const auto& [key, element] : value.items())
        dict.insert(key, from_json(element, depth + 1));
      return dict;
    }
    case Type::binary:
    case Type::discarded: break;
  }
  refuse(std::string("save a JSON value: it is ") + value.type_name());
}

struct DtypeName {
  std::string_view name;
  c10::ScalarType dtype;
};
constexpr std::array kDtypes = std::to_array<DtypeName>({
    {"float32", torch::kFloat32},
    {"float64", torch::kFloat64},
    {"float16", torch::kFloat16},
    {"bfloat16", torch::kBFloat16},
    {"int64", torch::kInt64},
    {"int32", torch::kInt32},
    {"int16", torch::kInt16},
    {"int8", torch::kInt8},
    {"uint8", torch::kUInt8},
    {"uint16", torch::kUInt16},
    {"uint32", torch::kUInt32},
    {"uint64", torch::kUInt64},
    {"bool", torch::kBool},
    {"complex32", torch::kComplexHalf},
    {"complex64", torch::kComplexFloat},
    {"complex128", torch::kComplexDouble},
    {"float8_e4m3fn", torch::kFloat8_e4m3fn},
    {"float8_e4m3fnuz", torch::kFloat8_e4m3fnuz},
    {"float8_e5m2", torch::kFloat8_e5m2},
    {"float8_e5m2fnuz", torch::kFloat8_e5m2fnuz},
});

// Converts a tree of the archive to LibTorch's values. PickleTree guarantees its depth and size.
struct Conversion {
  using enum PickleKind;
  const StateArchive& archive;
  ArchiveTensors& tensors;
  const std::string& file;

  template <class... Parts>
  [[noreturn]] void cannot_hold(const Parts&... what) const {
    refuse(concat("read ", file, ": ", what..., " is not supported here"),
           DistError::Kind::kUnsupported);
  }

  // Many dicts have the same keys, as nodes that they share. A text is made once for those that
  // follow each other.
  struct Text {
    PickleNodeId id = 0;
    c10::IValue value = {};
  };
  std::array<Text, 16> texts = {};

  c10::IValue key(PickleNodeId id) {
    const PickleNode& node = archive.tree[id];
    switch (node.kind) {
      case kBool:
      case kInteger:
      case kDouble: return value(node);
      case kString: {
        Text& text = texts[id % texts.size()];
        if (text.id != id || text.value.isNone()) text = {id, value(node)};
        return text.value;
      }
      default: cannot_hold("a key that is ", to_text(node.kind));
    }
  }

  std::size_t hash_of(const PickleNode& key) const {
    switch (key.kind) {
      case kBool: return std::hash<bool>()(key.integer != 0);
      case kInteger: return std::hash<std::int64_t>()(key.integer);
      case kDouble: return std::hash<double>()(key.real);
      case kString: return std::hash<std::string_view>()(key.text);
      default: cannot_hold("a key that is ", to_text(key.kind));
    }
  }

  std::vector<std::size_t> hashes = {};  // of the keys of one dict

  void expect_places_of_keys(const PickleNode& dict) {
    hashes.clear();
    for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2)
      hashes.push_back(hash_of(archive.tree[dict.items[i]]));
    expect_places(hashes, file);
  }

  c10::IValue value(const PickleNode& node) {
    const PickleTree& tree = archive.tree;
    switch (node.kind) {
      case kNone: return {};
      case kBool: return node.integer != 0;
      case kInteger: return node.integer;
      case kDouble: return node.real;
      case kString:
      case kDtype:
      case kDevice: return node.text;
      case kTensor: return tensors.make(tree.tensors[static_cast<std::size_t>(node.integer)]);
      case kList: {
        auto list = make_list();
        list.reserve(node.items.size());
        for (const PickleNodeId item : node.items) list.push_back(value(tree[item]));
        return list;
      }
      case kTuple: {
        std::vector<c10::IValue> items;
        for (const PickleNodeId item : node.items) items.push_back(value(tree[item]));
        return c10::ivalue::Tuple::create(std::move(items));
      }
      case kDict: {
        expect_places_of_keys(node);
        PickleDict dict(c10::AnyType::get(), c10::AnyType::get());
        dict.reserve(node.items.size() / 2);
        for (std::size_t i = 0; i + 1 < node.items.size(); i += 2)
          dict.insert(key(node.items[i]), value(tree[node.items[i + 1]]));
        return dict;
      }
      case kBigInteger:
      case kBytes:
      case kSet: break;
    }
    cannot_hold(to_text(node.kind));
  }
};

}  // namespace

StateArchive open_state_archive(std::string_view bytes, const std::string& file, RecordCrcs crcs) {
  Result<StateArchive> archive = read_state_archive(bytes, crcs);
  if (!archive) throw to_dist_error(std::move(archive).error().within("read " + file));
  return *std::move(archive);
}

PickleDict make_string_dict() { return PickleDict(c10::StringType::get(), c10::AnyType::get()); }
PickleDict make_int_dict() { return PickleDict(c10::IntType::get(), c10::AnyType::get()); }
c10::impl::GenericList make_list() { return c10::impl::GenericList(c10::AnyType::get()); }

std::string_view bytes_of_storage(const torch::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  return {static_cast<const char*>(storage.data()), storage.nbytes()};
}

void write_pickle(const c10::IValue& top, const WriteBytes& write) {
  const Pickled pickled = pickle_of(top);
  ZipWriter zip(write);
  zip.add(std::string(kPickleRecord), pickled.pickle);
  zip.add(std::string(kByteOrderRecord), kByteOrder);
  std::size_t number = 0;
  for (const torch::Tensor& tensor : pickled.tensors)
    zip.add(storage_record(number++), bytes_of_storage(tensor));
  zip.add(std::string(kVersionRecord), kArchiveVersion);  // of the format; PyTorch requires it
  zip.finish();
}

ArchiveTensors::ArchiveTensors()
    : ArchiveTensors([](std::string_view bytes) {
        const auto size = static_cast<std::int64_t>(bytes.size());
        c10::Storage storage = torch::empty({size}, torch::kUInt8).storage();
        if (!bytes.empty()) std::memcpy(storage.mutable_data(), bytes.data(), bytes.size());
        return storage;
      }) {}

// On the CPU without LibTorch's calls, which take microseconds.
torch::Tensor ArchiveTensors::make(const PickleTensor& tensor) {
  const auto known = std::ranges::find(kDtypes, tensor.dtype.name, &DtypeName::name);
  if (known == kDtypes.end())
    refuse(concat("a tensor of dtype ", tensor.dtype.name, ", which is not supported"),
           DistError::Kind::kUnsupported);
  if (tensor.storage.record >= storages_.size()) storages_.resize(tensor.storage.record + 1);
  c10::Storage& storage = storages_[tensor.storage.record];
  if (!storage) storage = make_storage_(tensor.storage.contents);
  torch::Tensor result;
  if (storage.device().is_cpu()) {
    result = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                      c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                      c10::scalarTypeToTypeMeta(known->dtype));
    result.unsafeGetTensorImpl()->set_sizes_and_strides(
        c10::IntArrayRef(tensor.sizes), c10::IntArrayRef(tensor.strides), tensor.offset);
  } else {
    result = torch::empty({0}, torch::dtype(known->dtype).device(storage.device()));
    result.set_(storage, tensor.offset, tensor.sizes, tensor.strides);
  }
  if (!tensor.requires_grad) return result;
  const bool can_require = result.is_floating_point() || result.is_complex();
  return result.set_requires_grad(can_require);
}

c10::IValue to_ivalue(const StateArchive& archive, const PickleNode& node, ArchiveTensors& tensors,
                      const std::string& file) {
  return Conversion{archive, tensors, file}.value(node);
}

c10::IValue read_pickle(std::string_view bytes, const std::string& file, RecordCrcs crcs) {
  const StateArchive archive = open_state_archive(bytes, file, crcs);
  ArchiveTensors tensors;
  return to_ivalue(archive, archive.tree[archive.tree.top], tensors, file);
}

// Keys that were not chosen are near their places in a table of four times the size, at most.
void expect_places(const std::vector<std::size_t>& hashes, const std::string& file) {
  constexpr std::uint64_t kFibonacci = 11400714819323198485u;  // as in LibTorch's table
  const auto bits = static_cast<std::size_t>(std::bit_width(hashes.size())) + 3;
  if (hashes.size() <= bits) return;
  std::vector<std::uint8_t> keys(std::size_t{1} << bits);  // by place; at most 255
  for (const std::size_t hash : hashes) {
    std::uint8_t& here = keys[(kFibonacci * hash) >> (64 - bits)];
    if (here < std::numeric_limits<std::uint8_t>::max()) ++here;
  }
  std::size_t waiting = 0;  // keys that take one of the next places
  for (const std::uint8_t here : keys) {
    waiting += here;
    if (waiting > bits)
      corrupt(file, "keys of a dict were chosen to fill the memory of a hash table");
    if (waiting > 0) --waiting;
  }
}

void expect_memory(const torch::Tensor& tensor) {
  if (tensor.is_cpu() && tensor.has_storage() && tensor.numel() > 0 && !tensor.storage().data())
    refuse("a tensor of a checkpoint was not read; this is a bug of ddprun",
           DistError::Kind::kSystem);
}

std::optional<SavedValue> SavedValue::find(const std::string& key) const {
  if (!value.isGenericDict()) return std::nullopt;
  const auto entries = value.toGenericDict();
  const auto found = entries.find(key);
  if (found == entries.end()) return std::nullopt;
  return SavedValue{found->value(), file, key};
}

SavedValue SavedValue::at(const std::string& key) const {
  if (!value.isGenericDict()) corrupt(file, "a dict was expected around '", key, "'");
  if (const auto found = find(key)) return *found;
  corrupt(file, "it has no '", key, "'");
}

void SavedValue::expect(bool is_right, const char* expected) const {
  if (!is_right)
    corrupt(file, "'", name, "' is a ", value.tagKind(), ", ", expected, " was expected");
}

std::int64_t SavedValue::integer() const {
  expect(value.isInt(), "an integer");
  return value.toInt();
}

std::string SavedValue::text() const {
  expect(value.isString(), "text");
  return value.toStringRef();
}

PickleDict SavedValue::dict() const {
  expect(value.isGenericDict(), "a dict");
  return value.toGenericDict();
}

std::vector<c10::IValue> SavedValue::list() const {
  expect(value.isList(), "a list");
  return value.toListRef().vec();
}

torch::Tensor SavedValue::tensor() const {
  expect(value.isTensor(), "a tensor");
  expect_memory(value.toTensor());
  return value.toTensor();
}

nlohmann::json SavedValue::json() const { return to_json(value, file); }

c10::IValue from_json(const nlohmann::json& value) {
  try {
    (void)value.dump();  // throws unless all text is UTF-8
  } catch (const nlohmann::json::exception& invalid) {
    refuse(std::string("save a JSON value: ") + invalid.what());
  }
  return from_json(value, 0);
}

nlohmann::json to_json(const c10::IValue& value, const std::string& what) {
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isList()) {
    auto array = nlohmann::json::array();
    for (const c10::IValue& element : value.toListRef()) array.push_back(to_json(element, what));
    return array;
  }
  if (!value.isGenericDict()) corrupt(what, "it holds a ", value.tagKind());
  auto object = nlohmann::json::object();
  for (const auto& entry : value.toGenericDict()) {
    if (!entry.key().isString()) corrupt(what, "a key is a ", entry.key().tagKind(), ", not text");
    object[entry.key().toStringRef()] = to_json(entry.value(), what);
  }
  return object;
}

namespace {

// The list that a module has. named_parameters() makes another one, which takes longer than to use
// it.
struct Members : torch::nn::Module {
  static const StateDict& parameters_of(const torch::nn::Module& module) {
    return module.*(&Members::parameters_);
  }
};

// The order of Module.state_dict() in Python: of each module its parameters, its buffers, then
// its children.
void add_tensors_of(const torch::nn::Module& module, const std::string& prefix,
                    std::vector<std::pair<std::string, torch::Tensor>>& result) {
  const auto add = [&](const StateDict& own) {
    for (const auto& item : own)
      if (item.value().defined()) result.emplace_back(prefix + item.key(), item.value());
  };
  add(Members::parameters_of(module));
  add(module.named_buffers(/*recurse=*/false));
  for (const auto& item : module.named_children())
    add_tensors_of(*item.value(), prefix + item.key() + ".", result);
}

}  // namespace

std::vector<std::pair<std::string, torch::Tensor>> tensors_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, torch::Tensor>> result;
  add_tensors_of(module, "", result);
  return result;
}

namespace {

// ModelHash: the hash of a line for each tensor. Their order does not matter.
class ModelHash {
 public:
  // Adds the line of a tensor: its name and dtype_and_shape(), without a stream.
  void add(const std::string& name, const torch::Tensor& tensor) {
    begins_.push_back(text_.size());
    text_ += name;
    text_ += ' ';
    text_ += c10::toString(tensor.scalar_type());
    text_ += " of shape [";
    for (std::int64_t i = 0; i < tensor.dim(); ++i) {
      if (i > 0) text_ += ", ";
      text_ += std::to_string(tensor.size(i));
    }
    text_ += "]\n";
  }

  // Call it once.
  std::string hex() {
    std::vector<std::string_view> lines;
    lines.reserve(begins_.size());
    begins_.push_back(text_.size());
    for (std::size_t i = 0; i + 1 < begins_.size(); ++i)
      lines.push_back(std::string_view(text_).substr(begins_[i], begins_[i + 1] - begins_[i]));
    std::ranges::sort(lines);
    Sha256 digest;
    for (const std::string_view line : lines) digest.add(line.data(), line.size());
    return digest.hex().substr(0, 16);
  }

 private:
  std::string text_;
  std::vector<std::size_t> begins_;
};

}  // namespace

std::string model_hash(const torch::nn::Module& module) {
  ModelHash hash;
  for (const auto& [name, tensor] : tensors_of(module)) hash.add(name, tensor);
  return hash.hex();
}

std::string model_hash(const PickleDict& module_state) {
  ModelHash hash;
  for (const auto& entry : module_state)
    hash.add(entry.key().toStringRef(), entry.value().toTensor());
  return hash.hex();
}

torch::Tensor tensor_for_file(const torch::Tensor& tensor) {
  // variable_data() is detach() without the dispatcher.
  const torch::Tensor plain = tensor.is_cpu() ? tensor.variable_data() : tensor.detach().cpu();
  if (plain.is_conj() || plain.is_neg()) return plain.resolve_conj().resolve_neg();
  const bool is_slice = plain.storage().nbytes() > plain.nbytes();
  return is_slice ? plain.clone() : plain;
}

PickleDict tensors_for_file(const std::map<std::string, torch::Tensor>& tensors) {
  PickleDict dict = make_string_dict();
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor_for_file(tensor));
  return dict;
}

PickleDict module_state(const torch::nn::Module& module,
                        const std::function<bool(const std::string&)>& keeps,
                        const TensorForFile& for_file, std::optional<PickleDict> old) {
  RefilledDict dict(std::move(old), make_string_dict);
  const auto tensors = tensors_of(module);
  if (!keeps) dict.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors)
    if (!keeps || keeps(name)) dict.add(name, for_file(tensor));
  return dict.finish();
}

namespace {

// Returns "'a', 'b' and 3 more".
std::string text_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMaxShown = 8;
  const auto first = std::span(names).first(std::min(names.size(), kMaxShown));
  std::string text = concat("'", joined(first, "', '"), "'");
  if (names.size() > kMaxShown) text += concat(" and ", names.size() - kMaxShown, " more");
  return text;
}

// Returns the first tensors that differ from the module's, each with its form and the expected
// form.
std::string mismatches(const std::vector<std::pair<std::string, torch::Tensor>>& own,
                       const StateDict& state, const std::string& whose) {
  constexpr std::size_t kMaxShown = 4;
  std::string text;
  std::size_t count = 0;
  for (const auto& [name, tensor] : own) {
    const torch::Tensor* value = state.find(name);
    if (!value || (value->sizes() == tensor.sizes() && value->dtype() == tensor.dtype())) continue;
    if (++count > kMaxShown) continue;
    text += concat("; '", name, "' is ", dtype_and_shape(*value), " in ", whose, " and ",
                   dtype_and_shape(tensor), " in this model");
  }
  if (count > kMaxShown) text += concat(" and ", count - kMaxShown, " more differ");
  return text;
}

}  // namespace

namespace {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

// Compares names, shapes and dtypes. Throws as copy_into_module().
IncompatibleKeys compare(const NamedTensors& own, const StateDict& state, Strict strict,
                         const std::string& doing, const std::string& whose) {
  IncompatibleKeys keys;
  std::set<std::string_view> own_names;
  for (const auto& [name, tensor] : own) {
    own_names.insert(name);
    if (!state.contains(name)) keys.missing.push_back(name);
  }
  for (const auto& item : state)
    if (!own_names.contains(item.key())) keys.unexpected.push_back(item.key());
  std::string wrong = mismatches(own, state, whose);
  if (strict == Strict::kYes && !keys.missing.empty())
    wrong += concat("; ", whose, " has no ", text_of(keys.missing));
  if (strict == Strict::kYes && !keys.unexpected.empty())
    wrong += "; this model has no " + text_of(keys.unexpected);
  if (!wrong.empty()) refuse(doing + ": " + wrong.substr(2));
  return keys;
}

// Returns whether a state dict has these names in this order, and tensors of these shapes and
// dtypes. This is faster than compare(), which says what differs.
bool is_alike(const NamedTensors& own, const c10::IValue& state) {
  if (!state.isGenericDict()) return false;
  const PickleDict dict = state.toGenericDict();
  if (dict.size() != own.size()) return false;
  auto expected = own.begin();
  for (const auto& entry : dict) {
    const auto& [name, tensor] = *expected++;
    if (!entry.key().isString() || entry.key().toStringRef() != name || !entry.value().isTensor())
      return false;
    const torch::Tensor& saved = entry.value().toTensor();
    if (saved.sizes() != tensor.sizes() || saved.dtype() != tensor.dtype()) return false;
  }
  return true;
}

StateDict state_dict_of(const c10::IValue& state, const std::string& file) {
  if (!state.isGenericDict()) corrupt(file, "the model is not a dict");
  StateDict saved;
  for (const auto& entry : state.toGenericDict()) {
    if (!entry.key().isString()) corrupt(file, "a name in the model is not text");
    const std::string& name = entry.key().toStringRef();
    if (!entry.value().isTensor()) corrupt(file, "'", name, "' is not a tensor");
    saved.insert(name, entry.value().toTensor());
  }
  return saved;
}

}  // namespace

IncompatibleKeys copy_into_module(torch::nn::Module& module, const StateDict& state, Strict strict,
                                  const std::string& doing, const std::string& whose) {
  const NamedTensors own = tensors_of(module);
  IncompatibleKeys keys = compare(own, state, strict, doing, whose);
  torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own) {
    torch::Tensor target = tensor;
    if (const torch::Tensor* value = state.find(name)) copy_unless_same(target, *value);
  }
  return keys;
}

void copy_unless_same(torch::Tensor& target, const torch::Tensor& value) {
  if (target.numel() > 0 && target.device() == value.device() &&
      target.const_data_ptr() == value.const_data_ptr() && target.strides() == value.strides())
    return;
  expect_memory(value);
  target.copy_(value);
}

void expect_module_state(const torch::nn::Module& module, const c10::IValue& state,
                         const std::string& file) {
  const NamedTensors own = tensors_of(module);
  if (is_alike(own, state)) return;
  (void)compare(own, state_dict_of(state, file), Strict::kYes, "restore the model from " + file,
                "the file");
}

void load_module_state(torch::nn::Module& module, const c10::IValue& state,
                       const std::string& file) {
  if (NamedTensors own = tensors_of(module); is_alike(own, state)) {
    const torch::NoGradGuard no_grad;
    auto target = own.begin();
    for (const auto& entry : state.toGenericDict())
      copy_unless_same((target++)->second, entry.value().toTensor());
    return;
  }
  copy_into_module(module, state_dict_of(state, file), Strict::kYes,
                   "restore the model from " + file, "the file");
}

torch::Tensor generator_of_rank(const std::vector<torch::Tensor>& saved, std::size_t rank) {
  if (rank < saved.size()) return saved[rank];
  const torch::Tensor first = saved[0].contiguous();
  const std::string text(static_cast<const char*>(first.const_data_ptr()), first.nbytes());
  const std::string digest = sha256_hex(text + concat(" rank ", rank));
  const std::uint64_t seed = std::stoull(digest.substr(0, 16), nullptr, 16);
  return at::detail::createCPUGenerator(seed).get_state();
}

std::vector<c10::IValue> gather_values(ProcessGroup& group, const PickleDict& own,
                                       const std::string& what, std::optional<Timeout> timeout) {
  std::string bytes;
  if (group.rank() != 0)
    write_pickle(own, [&](const void* data, std::size_t size) {
      bytes.append(static_cast<const char*>(data), size);
    });
  const std::vector<std::string> all = group.gather_bytes(bytes, /*root=*/0, timeout);
  std::vector<c10::IValue> result;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    result.push_back(rank == 0 ? c10::IValue(own)
                               : read_pickle(all[rank], concat(what, " of rank ", rank)));
  return result;
}

}  // namespace ddprun
