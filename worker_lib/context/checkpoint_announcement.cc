#include "worker_lib/context/checkpoint_announcement.h"

#include <string>

#include "rendezvous/store/client.h"

namespace ddprun {

Result<void> announce_checkpoint(const WorkerEnv& env, std::int64_t step) {
  const std::string doing = "announce the checkpoint of step " + std::to_string(step);
  const HostPort address = store_address(env);
  auto store = StoreClient::connect({.address = address,
                                     .prefix = "",
                                     .connect_timeout = kAnnouncementPatience,
                                     .timeout = kAnnouncementPatience});
  if (!store) return std::move(store).error().within(doing);
  if (Result<void> set = (*store)->set(kCheckpointKey, std::to_string(step)); !set) {
    return std::move(set).error().within(doing);
  }
  // A SET has no answer. The answer to the next request shows that the SET was carried out.
  const Result<bool> is_there = (*store)->check({std::string(kCheckpointKey)});
  if (!is_there) return is_there.error().within(doing);
  return {};
}

}  // namespace ddprun
