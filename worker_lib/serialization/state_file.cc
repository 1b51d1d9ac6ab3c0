#include "ddprun/state_file.h"

#include <fcntl.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>

#include "base/concat.h"
#include "base/durable_directory.h"
#include "base/joined.h"
#include "base/read_whole.h"
#include "base/unique_fd.h"
#include "worker_lib/serialization/atomic_file.h"
#include "worker_lib/serialization/optimizer_state.h"

namespace ddprun {
namespace {

constexpr std::array kModelKeys{"model", "state_dict", "model_state_dict"};
constexpr std::array kOptimizerKeys{"optimizer", "optimizer_state_dict"};
constexpr const char* kParallelPrefix = "module.";
constexpr std::size_t kMaxKeysShown = 8;

struct OpenFile {
  std::string bytes;
  StateArchive archive;
  const PickleTree& tree() const { return archive.tree; }
  const PickleNode& top() const { return tree()[tree().top]; }
};

std::unique_ptr<OpenFile> open_file(const std::string& path) {
  // A pipe without a writer must not block this process; it is read as empty.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) throw to_dist_error(system_error("open " + path, errno));
  auto file = std::make_unique<OpenFile>();
  file->bytes = value_or_throw(
      read_whole<std::string>(fd.get(), path, std::numeric_limits<std::uint64_t>::max()));
  file->archive = open_state_archive(file->bytes, path, RecordCrcs::kCheck);
  return file;
}

bool is_state_dict(const PickleTree& tree, const PickleNode& node) {
  if (node.kind != PickleKind::kDict) return false;
  return std::ranges::all_of(entries_of(node), [&](const PickleEntry& entry) {
    return tree[entry.key].kind == PickleKind::kString &&
           tree[entry.value].kind == PickleKind::kTensor;
  });
}

std::string keys_of(const PickleTree& tree, const PickleNode& dict) {
  if (dict.kind != PickleKind::kDict) return concat("it is ", to_text(dict.kind));
  std::vector<std::string> keys;
  for (const PickleEntry& entry : entries_of(dict)) {
    const PickleNode& key = tree[entry.key];
    keys.push_back(key.kind == PickleKind::kString ? concat("'", key.text, "'")
                                                   : std::string(to_text(key.kind)));
    if (keys.size() <= kMaxKeysShown) continue;
    keys.back() = "...";
    break;
  }
  return "it is a dict of " + joined(keys);
}

template <std::size_t n>
const PickleNode* find_any(const PickleTree& tree, const std::array<const char*, n>& keys) {
  for (const char* key : keys)
    if (const PickleNode* found = tree.find(tree[tree.top], key)) return found;
  return nullptr;
}

std::string_view without_prefix(std::string_view name, bool parallel) {
  if (parallel) name.remove_prefix(std::string_view(kParallelPrefix).size());
  return name;
}

}  // namespace

StateDict load_state_dict(const std::string& path) {
  return with_dist_errors("read " + path, [&] {
    const auto file = open_file(path);
    const PickleTree& tree = file->tree();
    const PickleNode* dict = &file->top();
    if (!is_state_dict(tree, *dict)) dict = find_any(tree, kModelKeys);
    if (!dict || !is_state_dict(tree, *dict))
      refuse(concat("read ", path,
                    ": it has no state dict, neither as a whole nor under 'model', 'state_dict' or "
                    "'model_state_dict'; ",
                    keys_of(tree, dict ? *dict : file->top())));
    const std::vector<PickleEntry> entries = entries_of(*dict);
    const bool parallel =
        !entries.empty() && std::ranges::all_of(entries, [&](const PickleEntry& entry) {
          return tree[entry.key].text.starts_with(kParallelPrefix);
        });
    ArchiveTensors tensors;
    StateDict result;
    for (const auto& [key, value] : entries)
      result.insert(std::string(without_prefix(tree[key].text, parallel)),
                    tensors.make(tree.tensors[static_cast<std::size_t>(tree[value].integer)]));
    return result;
  });
}

IncompatibleKeys load_into(torch::nn::Module& module, const StateDict& state, Strict strict) {
  constexpr const char* kDoing = "load a state dict into a module";
  return with_dist_errors(
      kDoing, [&] { return copy_into_module(module, state, strict, kDoing, "the state dict"); });
}

void load_optimizer_state_dict(const std::string& path, torch::optim::Optimizer& optimizer) {
  with_dist_errors("read " + path, [&] {
    const auto file = open_file(path);
    const PickleTree& tree = file->tree();
    const PickleNode* state = find_any(tree, kOptimizerKeys);
    if (!state && tree.find(file->top(), "param_groups")) state = &file->top();
    if (!state)
      refuse(concat("read ", path,
                    ": it has no state of an optimizer, neither as a whole nor under 'optimizer' "
                    "or 'optimizer_state_dict'; ",
                    keys_of(tree, file->top())));
    if (const PickleNode* saved = tree.find(file->top(), "optimizer_class");
        saved && saved->text != optimizer_class(optimizer))
      refuse(concat("read ", path, ": it holds the state of ", saved->text, ", this optimizer is ",
                    optimizer_class(optimizer)));
    ArchiveTensors tensors;
    load_optimizer_state(optimizer, to_ivalue(file->archive, *state, tensors, path), path);
  });
}

void save_state_dict(const std::string& path, const StateDict& state) {
  with_dist_errors("write " + path, [&] {
    PickleDict dict = make_string_dict();
    for (const auto& item : state) {
      if (!item.value().defined())
        refuse(concat("write ", path, ": '", item.key(), "' is undefined"));
      dict.insert(item.key(), tensor_for_file(item.value()));
    }
    AtomicFile file(path);
    write_pickle(dict, [&](const void* data, std::size_t bytes) { file.write(data, bytes); });
    value_or_throw(file.commit());
    const std::string directory = std::filesystem::path(path).parent_path().string();
    value_or_throw(flush_directory(directory.empty() ? "." : directory));
  });
}

void save_state_dict(const std::string& path, const torch::nn::Module& module) {
  StateDict state;
  for (const auto& [name, tensor] : tensors_of(module)) state.insert(name, tensor);
  save_state_dict(path, state);
}

}  // namespace ddprun
