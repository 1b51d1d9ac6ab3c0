#include "worker_lib/cpu/cpu_group.h"

#include "rendezvous/store_client.h"
#include "worker_lib/cpu/form_group.h"

namespace ddprun {

Result<std::unique_ptr<CpuGroup>> CpuGroup::form(StoreClient& store,
                                                 const CpuGroupOptions& options) {
  const auto key = [&](int rank) { return options.name + "/card/" + std::to_string(rank); };
  const ExchangeCards exchange = [&](const std::string& card) -> Result<std::vector<std::string>> {
    if (const Result<void> set = store.set(key(options.rank.value), card); !set) return set.error();
    std::vector<std::string> keys;
    for (int rank = 0; rank < options.world_size; ++rank) keys.push_back(key(rank));
    return store.multi_get(keys, options.timeout);
  };
  return form_group(exchange, store.local_address(), options);
}

}  // namespace ddprun
