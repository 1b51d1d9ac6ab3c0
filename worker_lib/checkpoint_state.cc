#include "worker_lib/checkpoint_state.h"

#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/torch.h>

#include <limits>

#include "ddprun/error.h"
#include "worker_lib/error_bridge.h"
#include "worker_lib/tensor_facts.h"

namespace ddprun {
namespace {

constexpr int kMaxJsonDepth = 64;

[[noreturn]] void corrupt(const std::string& file, const std::string& what) {
  refuse("read " + file + ": " + what, DistError::Kind::kCorrupt);
}

c10::IValue from_json(const nlohmann::json& value, int depth) {
  using Type = nlohmann::json::value_t;
  if (depth > kMaxJsonDepth)
    refuse("save a JSON value: it is nested deeper than " + std::to_string(kMaxJsonDepth));
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

}  // namespace

PickleDict make_string_dict() { return PickleDict(c10::StringType::get(), c10::AnyType::get()); }
PickleDict make_int_dict() { return PickleDict(c10::IntType::get(), c10::AnyType::get()); }
c10::impl::GenericList make_list() { return c10::impl::GenericList(c10::AnyType::get()); }

void write_pickle(const c10::IValue& top,
                  const std::function<void(const void*, std::size_t)>& write) {
  std::string pickled;
  torch::jit::Pickler pickler([&](const char* data, size_t size) { pickled.append(data, size); },
                              nullptr, nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(top);
  pickler.stop();
  caffe2::serialize::PyTorchStreamWriter zip([&](const void* data, size_t size) {
    write(data, size);
    return size;
  });
  zip.writeRecord("data.pkl", pickled.data(), pickled.size());
  zip.writeRecord("byteorder", "little", 6);
  int index = 0;
  for (const at::Tensor& tensor : pickler.tensorData())
    zip.writeRecord("data/" + std::to_string(index++), tensor.storage().data(),
                    tensor.storage().nbytes());
  zip.writeEndOfFile();
}

c10::IValue read_pickle(std::vector<char> bytes, const std::string& file) {
  try {
    return torch::pickle_load(bytes);
  } catch (...) {
    corrupt(file, error_in_flight("unpickle").message());
  }
}

c10::IValue entry_of(const c10::IValue& dict, const std::string& key, const std::string& file) {
  if (!dict.isGenericDict()) corrupt(file, "a dict was expected around '" + key + "'");
  const auto entries = dict.toGenericDict();
  const auto found = entries.find(key);
  if (found == entries.end()) corrupt(file, "it has no '" + key + "'");
  return found->value();
}

c10::IValue from_json(const nlohmann::json& value) {
  try {
    (void)value.dump();  // checks that all text is UTF-8
  } catch (const nlohmann::json::exception& invalid) {
    refuse(std::string("save a JSON value: ") + invalid.what());
  }
  return from_json(value, 0);
}

nlohmann::json to_json(const c10::IValue& value) {
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isList()) {
    auto array = nlohmann::json::array();
    for (const c10::IValue& element : value.toListRef()) array.push_back(to_json(element));
    return array;
  }
  if (!value.isGenericDict()) refuse("read a JSON value: it is a " + value.tagKind());
  auto object = nlohmann::json::object();
  for (const auto& entry : value.toGenericDict())
    object[entry.key().toStringRef()] = to_json(entry.value());
  return object;
}

std::vector<std::pair<std::string, torch::Tensor>> tensors_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, torch::Tensor>> result;
  for (const auto& item : module.named_parameters())
    if (item.value().defined()) result.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers())
    if (item.value().defined()) result.emplace_back(item.key(), item.value());
  return result;
}

torch::Tensor tensor_for_file(const torch::Tensor& tensor) {
  const torch::Tensor plain = tensor.detach().cpu();
  const bool is_slice = plain.storage().nbytes() > plain.nbytes();
  return is_slice ? plain.clone() : plain;
}

PickleDict module_state(const torch::nn::Module& module) {
  PickleDict dict = make_string_dict();
  for (const auto& [name, tensor] : tensors_of(module)) dict.insert(name, tensor_for_file(tensor));
  return dict;
}

void load_module_state(torch::nn::Module& module, const c10::IValue& state,
                       const std::string& file) {
  const auto own = tensors_of(module);
  if (!state.isGenericDict()) corrupt(file, "the model is not a dict");
  const PickleDict saved = state.toGenericDict();
  const std::string doing = "restore the model from " + file + ": ";
  for (const auto& [name, tensor] : own) {
    const auto found = saved.find(name);
    if (found == saved.end()) refuse(doing + "the file has no '" + name + "'");
    if (!found->value().isTensor()) corrupt(file, "'" + name + "' is not a tensor");
    const torch::Tensor& value = found->value().toTensor();
    if (value.sizes() != tensor.sizes() || value.dtype() != tensor.dtype())
      refuse(doing + "'" + name + "' is " + dtype_and_shape(value) + " in the file and " +
             dtype_and_shape(tensor) + " in this model");
  }
  for (const auto& entry : saved)
    if (std::ranges::find(own, entry.key().toStringRef(),
                          [](const auto& item) { return item.first; }) == own.end())
      refuse(doing + "this model has no '" + entry.key().toStringRef() + "'");
  torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own) {
    torch::Tensor target = tensor;
    target.copy_(saved.at(name).toTensor());
  }
}

}  // namespace ddprun
