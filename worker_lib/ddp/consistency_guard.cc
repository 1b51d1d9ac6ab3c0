#include "worker_lib/ddp/consistency_guard.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>

#include "base/assert.h"
#include "base/concat.h"
#include "base/joined.h"
#include "ddprun/zero_optimizer.h"
#include "worker_lib/collective/core/tensor_hash.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/group/verification.h"
#include "worker_lib/serialization/optimizer_state.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using nlohmann::json;

constexpr std::size_t kShown = 4;  // names, and differences, in an error

std::uint64_t hash_of(const std::string& text) {
  return tensor_hash(std::as_bytes(std::span(text)));
}

// Returns "rank 1 differs from ranks 0 and 2 in parameter 'a', parameter 'b' and 3 more".
std::string text_of(const Difference& difference) {
  const auto& [usual, others] = difference.ranks;
  return name_ranks(others) + (others.size() == 1 ? " differs" : " differ") + " from " +
         name_ranks(usual) + " in " + joined_up_to(difference.names, kShown);
}

std::string text_of(const std::vector<Difference>& differences) {
  std::vector<std::string> texts;
  std::size_t rest = 0;
  for (const Difference& one : differences) {
    if (texts.size() < kShown) {
      texts.push_back(text_of(one));
    } else {
      rest += one.names.size();
    }
  }
  const std::string text = joined(texts, "; ");
  return rest > 0 ? concat(text, "; other ranks differ in ", rest, " more") : text;
}

}  // namespace

std::uint64_t hash_of_value(const c10::IValue& value) {
  if (value.isTensor()) return hash_of(value.toTensor());
  if (value.isDouble()) return std::bit_cast<std::uint64_t>(value.toDouble());
  if (value.isInt()) return static_cast<std::uint64_t>(value.toInt());
  if (value.isBool()) return value.toBool() ? 1 : 0;
  if (value.isString()) return hash_of(value.toStringRef());
  std::vector<std::uint64_t> hashes;
  if (value.isTuple())
    for (const c10::IValue& one : value.toTupleRef().elements())
      hashes.push_back(hash_of_value(one));
  if (value.isList())
    for (const c10::IValue& one : value.toListRef()) hashes.push_back(hash_of_value(one));
  if (value.isGenericDict())
    for (const auto& entry : value.toGenericDict()) {
      hashes.push_back(hash_of_value(entry.key()));
      hashes.push_back(hash_of_value(entry.value()));
    }
  return tensor_hash(hashes);
}

std::int64_t combined(const std::vector<NamedHash>& table) {
  std::vector<std::uint64_t> words;
  for (const auto& [name, hash] : table) {
    words.push_back(hash_of(name));
    words.push_back(hash);
  }
  return std::bit_cast<std::int64_t>(tensor_hash(words));
}

json to_json(const HashTable& table) {
  if (!table) return nullptr;
  json result = json::array();
  for (const auto& [name, hash] : *table) result.push_back({name, hash});
  return result;
}

HashTable table_of(const json& value) {
  if (value.is_null()) return std::nullopt;
  std::vector<NamedHash> table;
  for (const json& one : value)
    table.push_back({one.at(0).get<std::string>(), one.at(1).get<std::uint64_t>()});
  return table;
}

std::vector<NamedHash> hashes_of(const torch::optim::Optimizer& optimizer,
                                 const std::map<const void*, std::string>& names) {
  std::vector<NamedHash> result;
  const PickleDict dict = optimizer_state(optimizer);
  const auto groups = dict.at("param_groups").toList();
  const auto states = dict.at("state").toGenericDict();
  const bool is_sharded = dynamic_cast<const detail::ShardedOptimizer*>(&optimizer) != nullptr;
  std::int64_t index = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::string whose = " of parameter group " + std::to_string(g) + " of the optimizer";
    for (const auto& option : groups.get(g).toGenericDict())
      if (const std::string& key = option.key().toStringRef(); key != "params")
        result.push_back({"'" + key + "'" + whose, hash_of_value(option.value())});
    for (const torch::Tensor& parameter : optimizer.param_groups()[g].params()) {
      const auto state = states.find(index++);
      const auto name = names.find(parameter.unsafeGetTensorImpl());
      if (state == states.end() || name == names.end() || is_sharded) continue;
      for (const auto& field : state->value().toGenericDict())
        result.push_back({"'" + field.key().toStringRef() + "' of " + name->second,
                          hash_of_value(field.value())});
    }
  }
  return result;
}

void ConsistencyGuard::begin(std::int64_t passes, HashTable own) {
  const auto mine =
      torch::tensor({std::int64_t{own.has_value()}, own ? combined(*own) : 0}).to(group_.device());
  Check check{.passes = passes,
              .own = std::move(own),
              .all = torch::empty({group_.size(), 2}, mine.options()),
              .work = {}};
  check.work = group_.all_gather_into_tensor(check.all, mine, {.timeout = timeout_, .async = true});
  check_ = std::move(check);
  last_begun_ = passes;
}

void ConsistencyGuard::settle(std::int64_t passes) {
  if (!check_ || check_->passes == passes) return;
  const Check check = *std::exchange(check_, std::nullopt);
  check.work.wait();
  const torch::Tensor all = check.all.cpu();
  const auto* words = all.const_data_ptr<std::int64_t>();
  std::optional<std::int64_t> first;
  for (int rank = 0; rank < group_.size(); ++rank, words += 2) {
    if (words[0] == 0) continue;
    if (!first) first = words[1];
    if (words[1] != *first) report(check);
  }
  last_equal_ = check.passes;
}

void ConsistencyGuard::report(const Check& check) {
  std::vector<HashTable> tables;
  for (const json& table : group_.all_gather_object(to_json(check.own), timeout_))
    tables.push_back(table_of(table));
  const std::vector<Difference> differences = find_differences(tables);
  DDPRUN_ASSERT(!differences.empty(), "tables with different hashes differ");
  refuse(concat("forward of DistributedDataParallel: the ranks have drifted apart: ",
                text_of(differences), ". They were the same after step ", last_equal_,
                ", and no more after step ", check.passes, " (option 'check_consistency_every' ",
                every_, ")"),
         DistError::Kind::kCorrupt, only_culprit(differences).value_or(-1));
}

}  // namespace ddprun
