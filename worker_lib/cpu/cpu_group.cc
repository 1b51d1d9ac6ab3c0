#include "worker_lib/cpu/cpu_group.h"

#include "rendezvous/store_client.h"
#include "worker_lib/cpu/form_group.h"
#include "worker_lib/cpu/rank_names.h"

namespace ddprun {
namespace {

// "ranks 2 and 5": those whose keys are not there; empty when all are, or the store does not say.
std::string missing_ranks(StoreClient& store, const std::vector<std::string>& keys) {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(keys.size()); ++rank) {
    const Result<bool> is_here = store.check({keys[static_cast<std::size_t>(rank)]});
    if (!is_here) return "";
    if (!*is_here) ranks.push_back(rank);
  }
  return ranks.empty() ? "" : name_ranks(ranks);
}

}  // namespace

Result<std::unique_ptr<CpuGroup>> CpuGroup::form(StoreClient& store,
                                                 const CpuGroupOptions& options) {
  const auto key = [&](int rank) { return options.name + "/card/" + std::to_string(rank); };
  const ExchangeCards exchange = [&](const std::string& card) -> Result<std::vector<std::string>> {
    if (const Result<void> set = store.set(key(options.rank.value), card); !set) return set.error();
    std::vector<std::string> keys;
    for (int rank = 0; rank < options.world_size; ++rank) keys.push_back(key(rank));
    Result<std::vector<std::string>> cards = store.multi_get(keys, options.timeout);
    if (cards || cards.error().kind != ErrorKind::kTimeout) return cards;
    const std::string missing = missing_ranks(store, keys);
    if (missing.empty()) return cards;
    return std::move(cards).error().within(missing + " did not come");
  };
  return form_group(exchange, store.local_address(), options);
}

}  // namespace ddprun
