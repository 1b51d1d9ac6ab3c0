#include "worker_lib/checkpoint/core/shards.h"

#include <map>
#include <optional>
#include <utility>

namespace ddprun {
namespace {

// Thrown within this file only.
struct Refused {
  Error error;
};

[[noreturn]] void refuse(std::size_t shard, const std::string& what) {
  throw Refused{{.kind = ErrorKind::kCorrupt,
                 .doing = "put the shards together",
                 .cause = "shard " + std::to_string(shard) + " " + what}};
}

void append(PickleNode& dict, PickleEntry entry) {
  dict.items.insert(dict.items.end(), {entry.key, entry.value});
}

constexpr std::string_view kModelNames = "model_names";

class Merger {
 public:
  explicit Merger(const std::vector<StateArchive>& shards) : shards_(shards) {}

  MergedArchive run() {
    for (std::size_t s = 0; s < shards_.size(); ++s) take(s);
    PickleTree& tree = result_.archive.tree;
    PickleNode top{.kind = PickleKind::kDict};
    for (auto [key, value] : entries_of(top_of(0))) {
      const std::string name = tree[key].text;
      if (name == "shard" || name == "shards" || name == "rank" || name == kModelNames) continue;
      if (name == "model") value = merged_model();
      if (name == "optimizer") value = merged_optimizer(value);
      append(top, {key, value});
    }
    if (const auto ranks = merged_ranks())
      append(top, {add({.kind = PickleKind::kString, .text = "ranks"}), *ranks});
    tree.top = add(std::move(top));
    return std::move(result_);
  }

 private:
  // Appends a copy of a shard's tree.
  void take(std::size_t s) {
    const StateArchive& shard = shards_[s];
    PickleTree& tree = result_.archive.tree;
    const auto first_node = static_cast<PickleNodeId>(tree.nodes.size());
    const auto first_tensor = static_cast<std::int64_t>(tree.tensors.size());
    for (PickleNode node : shard.tree.nodes) {
      for (PickleNodeId& item : node.items) item += first_node;
      if (node.kind == PickleKind::kTensor) node.integer += first_tensor;
      tree.nodes.push_back(std::move(node));
    }
    const std::string prefix = std::to_string(s) + "/";
    for (PickleTensor tensor : shard.tree.tensors) {
      tensor.storage.key.insert(0, prefix);
      tree.tensors.push_back(std::move(tensor));
    }
    for (const auto& [key, bytes] : shard.storages) result_.archive.storages[prefix + key] = bytes;
    const std::string data = shard.prefix + "data/";
    for (const ZipRecord& record : shard.records)
      if (record.name.starts_with(data))
        result_.crcs[prefix + record.name.substr(data.size())] = record.crc;
    tops_.push_back(first_node + shard.tree.top);
    const PickleNode* number = find(s, top_of(s), "shard", PickleKind::kInteger);
    const PickleNode* count = find(s, top_of(s), "shards", PickleKind::kInteger);
    if (number->integer != static_cast<std::int64_t>(s) ||
        count->integer != static_cast<std::int64_t>(shards_.size()))
      refuse(s, "says that it is shard " + std::to_string(number->integer) + " of " +
                    std::to_string(count->integer) + ", there are " +
                    std::to_string(shards_.size()));
  }

  const PickleNode& top_of(std::size_t s) const { return result_.archive.tree[tops_[s]]; }

  const PickleNode* find(std::size_t s, const PickleNode& dict, std::string_view key,
                         PickleKind kind) const {
    const PickleNode* found = result_.archive.tree.find(dict, key);
    if (!found) refuse(s, "has no '" + std::string(key) + "'");
    if (found->kind != kind)
      refuse(s, "has a '" + std::string(key) + "' that is " + std::string(to_text(found->kind)) +
                    ", not " + std::string(to_text(kind)));
    return found;
  }

  PickleNodeId add(PickleNode node) {
    PickleTree& tree = result_.archive.tree;
    tree.nodes.push_back(std::move(node));
    return static_cast<PickleNodeId>(tree.nodes.size() - 1);
  }

  PickleNodeId merged_model() {
    const PickleTree& tree = result_.archive.tree;
    std::map<std::string, PickleEntry> by_name;
    for (std::size_t s = 0; s < shards_.size(); ++s)
      for (const PickleEntry& entry : entries_of(*find(s, top_of(s), "model", PickleKind::kDict)))
        by_name[tree[entry.key].text] = entry;
    PickleNode merged{.kind = PickleKind::kDict};
    for (const PickleNodeId id : find(0, top_of(0), kModelNames, PickleKind::kList)->items) {
      const auto found = by_name.find(tree[id].text);
      if (found == by_name.end()) refuse(0, "names '" + tree[id].text + "', which no shard has");
      append(merged, found->second);
    }
    return add(std::move(merged));
  }

  PickleNodeId merged_optimizer(PickleNodeId first) {
    const PickleTree& tree = result_.archive.tree;
    std::map<std::int64_t, PickleEntry> by_index;
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      const PickleNode& optimizer = *find(s, top_of(s), "optimizer", PickleKind::kDict);
      for (const PickleEntry& entry : entries_of(*find(s, optimizer, "state", PickleKind::kDict)))
        by_index[tree[entry.key].integer] = entry;
    }
    PickleNode state{.kind = PickleKind::kDict};
    for (const auto& [index, entry] : by_index) append(state, entry);
    PickleNode merged = tree[first];
    const PickleNodeId merged_state = add(std::move(state));
    for (std::size_t i = 0; i + 1 < merged.items.size(); i += 2)
      if (result_.archive.tree[merged.items[i]].text == "state") merged.items[i + 1] = merged_state;
    return add(std::move(merged));
  }

  std::optional<PickleNodeId> merged_ranks() {
    const PickleTree& tree = result_.archive.tree;
    PickleNode ranks{.kind = PickleKind::kList};
    bool is_empty = true;
    for (std::size_t s = 0; s < shards_.size(); ++s)
      for (const auto& [key, value] : entries_of(top_of(s)))
        if (tree[key].text == "rank") {
          ranks.items.push_back(value);
          is_empty = is_empty && tree[value].items.empty();
        }
    if (is_empty) return std::nullopt;
    return add(std::move(ranks));
  }

  const std::vector<StateArchive>& shards_;
  MergedArchive result_;
  std::vector<PickleNodeId> tops_;
};

}  // namespace

Result<MergedArchive> merge_shards(const std::vector<StateArchive>& shards) {
  try {
    return Merger(shards).run();
  } catch (const Refused& refused) {
    return refused.error;
  }
}

}  // namespace ddprun
