#include "worker_lib/checkpoint/core/shards.h"

#include <map>
#include <optional>
#include <utility>

#include "base/concat.h"

namespace ddprun {
namespace {

// Thrown within this file only.
struct Refused {
  Error error;
};

template <class... Parts>
[[noreturn]] void refuse(std::size_t shard, const Parts&... what) {
  throw Refused{{.kind = ErrorKind::kCorrupt,
                 .doing = "put the shards together",
                 .cause = concat("shard ", shard, " ", what...)}};
}

void append(PickleNode& dict, PickleEntry entry) {
  dict.items.insert(dict.items.end(), {entry.key, entry.value});
}

constexpr std::string_view kModelNames = "model_names";

class Merger {
  using enum PickleKind;

 public:
  explicit Merger(const std::vector<StateArchive>& shards) : shards_(shards) {}

  StateArchive run() {
    for (std::size_t s = 0; s < shards_.size(); ++s) take(s);
    PickleNode top{.kind = kDict};
    for (auto [key, value] : entries_of(top_of(0))) {
      const std::string name = tree_[key].text;
      if (name == "shard" || name == "shards" || name == "rank" || name == kModelNames) continue;
      if (name == "model") value = merged_model();
      if (name == "optimizer") value = merged_optimizer(value);
      append(top, {key, value});
    }
    if (const auto ranks = merged_ranks())
      append(top, {add({.kind = kString, .text = "ranks"}), *ranks});
    tree_.top = add(std::move(top));
    return std::move(result_);
  }

 private:
  // Appends a copy of a shard's tree.
  void take(std::size_t s) {
    const StateArchive& shard = shards_[s];
    const auto first_node = static_cast<PickleNodeId>(tree_.nodes.size());
    const auto first_tensor = static_cast<std::int64_t>(tree_.tensors.size());
    for (PickleNode node : shard.tree.nodes) {
      for (PickleNodeId& item : node.items) item += first_node;
      if (node.kind == kTensor) node.integer += first_tensor;
      tree_.nodes.push_back(std::move(node));
    }
    const std::string prefix = std::to_string(s) + "/";
    for (PickleTensor tensor : shard.tree.tensors) {
      tensor.storage.key.insert(0, prefix);
      tensor.storage.record += records_;
      tree_.tensors.push_back(std::move(tensor));
    }
    records_ += shard.records.size();
    tops_.push_back(first_node + shard.tree.top);
    const PickleNode* number = find(s, top_of(s), "shard", kInteger);
    const PickleNode* count = find(s, top_of(s), "shards", kInteger);
    if (number->integer != static_cast<std::int64_t>(s) ||
        count->integer != static_cast<std::int64_t>(shards_.size()))
      refuse(s, "says that it is shard ", number->integer, " of ", count->integer, ", there are ",
             shards_.size());
  }

  const PickleNode& top_of(std::size_t s) const { return tree_[tops_[s]]; }

  const PickleNode* find(std::size_t s, const PickleNode& dict, std::string_view key,
                         PickleKind kind) const {
    const PickleNode* found = tree_.find(dict, key);
    if (!found) refuse(s, "has no '", key, "'");
    if (found->kind != kind)
      refuse(s, "has a '", key, "' that is ", to_text(found->kind), ", not ", to_text(kind));
    return found;
  }

  PickleNodeId add(PickleNode node) {
    tree_.nodes.push_back(std::move(node));
    return static_cast<PickleNodeId>(tree_.nodes.size() - 1);
  }

  PickleNodeId merged_model() {
    std::map<std::string, PickleEntry> by_name;
    for (std::size_t s = 0; s < shards_.size(); ++s)
      for (const PickleEntry& entry : entries_of(*find(s, top_of(s), "model", kDict)))
        by_name[tree_[entry.key].text] = entry;
    PickleNode merged{.kind = kDict};
    for (const PickleNodeId id : find(0, top_of(0), kModelNames, kList)->items) {
      const auto found = by_name.find(tree_[id].text);
      if (found == by_name.end()) refuse(0, "names '", tree_[id].text, "', which no shard has");
      append(merged, found->second);
    }
    return add(std::move(merged));
  }

  PickleNodeId merged_optimizer(PickleNodeId first) {
    std::map<std::int64_t, PickleEntry> by_index;
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      const PickleNode& optimizer = *find(s, top_of(s), "optimizer", kDict);
      for (const PickleEntry& entry : entries_of(*find(s, optimizer, "state", kDict)))
        by_index[tree_[entry.key].integer] = entry;
    }
    PickleNode state{.kind = kDict};
    for (const auto& [index, entry] : by_index) append(state, entry);
    PickleNode merged = tree_[first];
    const PickleNodeId merged_state = add(std::move(state));
    for (std::size_t i = 0; i + 1 < merged.items.size(); i += 2)
      if (tree_[merged.items[i]].text == "state") merged.items[i + 1] = merged_state;
    return add(std::move(merged));
  }

  std::optional<PickleNodeId> merged_ranks() {
    PickleNode ranks{.kind = kList};
    bool is_empty = true;
    for (std::size_t s = 0; s < shards_.size(); ++s)
      for (const auto& [key, value] : entries_of(top_of(s)))
        if (tree_[key].text == "rank") {
          ranks.items.push_back(value);
          is_empty = is_empty && tree_[value].items.empty();
        }
    if (is_empty) return std::nullopt;
    return add(std::move(ranks));
  }

  const std::vector<StateArchive>& shards_;
  StateArchive result_;
  PickleTree& tree_ = result_.tree;
  std::size_t records_ = 0;  // of the shards so far
  std::vector<PickleNodeId> tops_;
};

}  // namespace

Result<StateArchive> merge_shards(const std::vector<StateArchive>& shards) {
  try {
    return Merger(shards).run();
  } catch (const Refused& refused) {
    return refused.error;
  }
}

}  // namespace ddprun
