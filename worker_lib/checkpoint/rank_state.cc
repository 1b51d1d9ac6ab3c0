#include "worker_lib/checkpoint/rank_state.h"

#include <torch/types.h>

#include <algorithm>
#include <map>

#include "base/concat.h"
#include "base/parse_number.h"
#include "worker_lib/ddp/consistency_guard.h"
#include "worker_lib/group/tensor_facts.h"
#include "worker_lib/serialization/optimizer_state.h"

namespace ddprun {
namespace {

constexpr const char* kOptimizer = "optimizer";
constexpr const char* kOwnState = "the state of this rank";  // for errors, instead of a file

// The hash in LibTorch's dicts.
std::size_t hash_of_key(const c10::IValue& key) { return c10::detail::DictKeyHash()(key); }

std::vector<std::size_t> hashes_of_keys(const PickleDict& dict) {
  std::vector<std::size_t> hashes;
  hashes.reserve(dict.size());
  for (const auto& entry : dict) hashes.push_back(hash_of_key(entry.key()));
  return hashes;
}

// Adds entries whose keys a file may have chosen. Throws as expect_places().
void insert_all(PickleDict& dict, const std::vector<std::pair<c10::IValue, c10::IValue>>& entries,
                const std::string& file) {
  std::vector<std::size_t> hashes = hashes_of_keys(dict);
  for (const auto& [key, value] : entries) hashes.push_back(hash_of_key(key));
  expect_places(hashes, file);
  for (const auto& [key, value] : entries) dict.insert(key, value);
}

std::string text_of_key(const c10::IValue& key) {
  return key.isInt() ? std::to_string(key.toInt()) : key.toStringRef();
}

c10::IValue key_of_text(const std::string& section, const std::string& text) {
  if (section != kOptimizer) return text;
  const auto index = parse_number<std::int64_t>(text);
  return index ? *index : -1;
}

PickleDict empty_section(const std::string& section) {
  return section == kOptimizer ? make_int_dict() : make_string_dict();
}

PickleDict buffers_of(const torch::nn::Module& model) {
  PickleDict result = make_string_dict();
  for (const auto& item : model.named_buffers())
    if (item.value().defined()) result.insert(item.key(), tensor_for_file(item.value()));
  return result;
}

PickleDict gradients_of(const torch::nn::Module& model) {
  PickleDict result = make_string_dict();
  for (const auto& item : model.named_parameters()) {
    const torch::Tensor& gradient = item.value().grad();
    if (!gradient.defined()) continue;
    if (gradient.layout() != torch::kStrided)
      refuse(concat("save the gradient of '", item.key(),
                    "': it is sparse; only dense ones can be saved"),
             DistError::Kind::kUnsupported);
    result.insert(item.key(), tensor_for_file(gradient));
  }
  return result;
}

// Splits "section/key", the names of hashes.
std::pair<std::string, std::string> split(const std::string& name) {
  const std::size_t slash = name.find('/');
  return {name.substr(0, slash), name.substr(slash + 1)};
}

torch::Tensor average(const std::vector<torch::Tensor>& tensors) {
  const auto is_first = [&](const torch::Tensor& tensor) { return tensor.is_same(tensors[0]); };
  if (std::ranges::all_of(tensors, is_first)) return tensors[0];
  torch::Tensor sum = tensors[0].clone();
  for (std::size_t i = 1; i < tensors.size(); ++i) sum += tensors[i];
  return sum.div_(static_cast<double>(tensors.size()));
}

}  // namespace

void add_named(PickleDict& section, const std::string& name, const PickleDict& entries,
               const std::string& file) {
  std::vector<std::pair<c10::IValue, c10::IValue>> named;
  for (const auto& entry : entries)
    named.emplace_back(name + "/" + text_of_key(entry.key()), entry.value());
  insert_all(section, named, file);
}

PickleDict part_named(const PickleDict& section, const std::string& name, const std::string& file) {
  std::vector<std::pair<c10::IValue, c10::IValue>> entries;
  for (const auto& entry : section) {
    const std::string key = text_of_key(entry.key());
    if (key.starts_with(name + "/"))
      entries.emplace_back(key.substr(name.size() + 1), entry.value());
  }
  PickleDict part = make_string_dict();
  insert_all(part, entries, file);
  return part;
}

bool may_differ_anywhere(const TrainingState& state) {
  return state.ranks_differ == RanksDiffer::kAnywhere ||
         (state.hook && !state.hook->keeps_ranks_equal());
}

PickleDict own_state(const TrainingState& state) {
  const bool anywhere = may_differ_anywhere(state);
  PickleDict own = make_string_dict();
  const auto add = [&](const char* section, const PickleDict& entries) {
    if (!entries.empty()) own.insert(section, entries);
  };
  const auto of_model = [&](const torch::nn::Module& model) {
    if (anywhere) return module_state(model);
    return state.ranks_differ == RanksDiffer::kInBuffers ? buffers_of(model) : make_string_dict();
  };
  const auto of_optimizer = [&](const torch::optim::Optimizer& optimizer) {
    if (!anywhere || is_sharded(optimizer)) return make_int_dict();
    return optimizer_state(optimizer).at("state").toGenericDict();
  };
  if (state.model) add("model", of_model(*state.model));
  if (state.optimizer) add(kOptimizer, of_optimizer(*state.optimizer));
  if (state.hook && state.model)
    add("comm_hook", tensors_for_file(state.hook->state(*state.model).tensors));
  PickleDict models = make_string_dict(), optimizers = make_string_dict();
  for (const auto& [name, model] : state.models)
    add_named(models, name, of_model(*model), kOwnState);
  for (const auto& [name, optimizer] : state.optimizers)
    add_named(optimizers, name, of_optimizer(*optimizer), kOwnState);
  add("models", models);
  add("optimizers", optimizers);
  if (state.ranks_differ != RanksDiffer::kNowhere) add("tensors", tensors_for_file(state.tensors));
  if (state.gradients) add("gradients", gradients_of(state));
  return own;
}

std::vector<NamedHash> hashes_of(const PickleDict& own) {
  std::vector<NamedHash> table;
  for (const auto& section : own)
    for (const auto& entry : section.value().toGenericDict())
      table.push_back({section.key().toStringRef() + "/" + text_of_key(entry.key()),
                       hash_of_value(entry.value())});
  return table;
}

PickleDict differences(const PickleDict& own, const std::vector<NamedHash>& of_rank_0) {
  std::map<std::string, std::uint64_t> hashes;
  for (const auto& [name, hash] : of_rank_0) hashes[name] = hash;
  PickleDict result = make_string_dict();
  const auto add = [&](const std::string& section, const c10::IValue& key,
                       const c10::IValue& value) {
    if (!result.contains(section)) result.insert(section, empty_section(section));
    result.at(section).toGenericDict().insert(key, value);
  };
  for (const auto& section : own)
    for (const auto& entry : section.value().toGenericDict()) {
      const std::string& name = section.key().toStringRef();
      const auto theirs = hashes.extract(name + "/" + text_of_key(entry.key()));
      if (theirs.empty() || theirs.mapped() != hash_of_value(entry.value()))
        add(name, entry.key(), entry.value());
    }
  for (const auto& [name, hash] : hashes) {
    const auto [section, key] = split(name);
    add(section, key_of_text(section, key), c10::IValue());
  }
  return result;
}

RankView::RankView(const SavedValue& top, int rank, int world_size)
    : rank_(rank),
      world_size_(world_size),
      saved_world_(static_cast<int>(top.at("world_size").integer())),
      file_(top.file) {
  if (const auto ranks = top.find("ranks")) ranks_ = ranks->list();
  if (!ranks_.empty() && static_cast<int>(ranks_.size()) != saved_world_)
    refuse(concat("read ", file_, ": it has the state of ", ranks_.size(), " ranks, of a world of ",
                  saved_world_),
           DistError::Kind::kCorrupt);
}

PickleDict RankView::of_rank(int rank, const std::string& key, const PickleDict& of_rank_0) const {
  const auto own = rank < static_cast<int>(ranks_.size())
                       ? SavedValue{ranks_[static_cast<std::size_t>(rank)], file_}.find(key)
                       : std::nullopt;
  if (!own) return of_rank_0;
  std::vector<std::size_t> hashes = hashes_of_keys(of_rank_0);
  for (const auto& entry : own->dict())
    if (!of_rank_0.contains(entry.key())) hashes.push_back(hash_of_key(entry.key()));
  expect_places(hashes, file_);
  PickleDict result = of_rank_0.copy();
  for (const auto& entry : own->dict()) {
    if (entry.value().isNone())
      (void)result.erase(entry.key());
    else
      result.insert_or_assign(entry.key(), entry.value());
  }
  return result;
}

PickleDict RankView::section(const std::string& key, const PickleDict& of_rank_0) const {
  return is_same_world() ? of_rank(rank_, key, of_rank_0) : of_rank_0;
}

std::vector<PickleDict> RankView::averaged_sections(const std::string& key,
                                                    const PickleDict& of_rank_0) const {
  if (is_same_world() || ranks_.empty()) return {section(key, of_rank_0)};
  std::vector<PickleDict> result;
  for (int rank = 0; rank < saved_world_; ++rank) result.push_back(of_rank(rank, key, of_rank_0));
  return result;
}

PickleDict RankView::averaged_section(const std::string& key, const PickleDict& of_rank_0) const {
  const std::vector<PickleDict> sections = averaged_sections(key, of_rank_0);
  if (sections.size() == 1) return sections[0];
  std::map<std::string, std::vector<torch::Tensor>> by_name;
  for (const PickleDict& of_one : sections)
    for (const auto& entry : of_one)
      by_name[SavedValue{entry.key(), file_, key}.text()].push_back(
          SavedValue{entry.value(), file_, key}.tensor());
  std::vector<std::pair<c10::IValue, c10::IValue>> averages;
  for (auto& [name, tensors] : by_name) {
    // A rank without the tensor counts as zeros.
    while (static_cast<int>(tensors.size()) < saved_world_)
      tensors.push_back(torch::zeros_like(tensors[0]));
    averages.emplace_back(name, average(tensors));
  }
  PickleDict result = make_string_dict();
  insert_all(result, averages, file_);
  return result;
}

PickleDict gradients_of(const TrainingState& state) {
  PickleDict result = make_string_dict();
  if (state.model) result = gradients_of(*state.model);
  for (const auto& [name, model] : state.models)
    add_named(result, name, gradients_of(*model), kOwnState);
  return result;
}

void load_gradients(torch::nn::Module& model, const PickleDict& gradients,
                    const std::string& file) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : model.named_parameters()) {
    torch::Tensor parameter = item.value();
    torch::Tensor& gradient = parameter.mutable_grad();
    const auto found = gradients.find(item.key());
    if (found == gradients.end()) {
      gradient.reset();
      continue;
    }
    const SavedValue value{found->value(), file, item.key()};
    const torch::Tensor saved = value.tensor();
    if (saved.sizes() != parameter.sizes() || saved.dtype() != parameter.dtype())
      value.refuse("the gradient of '", item.key(), "' is ", dtype_and_shape(saved),
                   " in the file, the parameter is ", dtype_and_shape(parameter));
    if (gradient.defined() && gradient.layout() == torch::kStrided)
      gradient.copy_(saved);  // it may be a view of a bucket
    else
      gradient =
          torch::empty_like(parameter, parameter.options().requires_grad(false)).copy_(saved);
  }
}

}  // namespace ddprun
