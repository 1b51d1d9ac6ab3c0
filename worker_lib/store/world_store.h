// WorldStore: the store through which the ranks of a world find each other, and this rank's
// claim to its place in it. If no launcher hosts the store, rank 0 does.
//
//   a launcher's store   is used as it is: only the ranks of one generation use it; if they start
//                        again, they use the next number
//   any other            rank 0 hosts it (or finds it: ddp-store, a store of the program's own),
//                        claims it for its world and announces this in it; each other rank waits
//                        for the announcement, and claims its place
//
// The claims detect ranks that do not belong to the world. Such are a rank of another job, a rank
// that was started twice, and a rank that starts while an earlier run is still ending.
//
// In a store without a launcher, the keys are below "ddprun/by-hand/<run id>/generation-<g>/":
//   host         counts the ranks 0 that claimed the world: must be 1
//   world        "<size> <token>", once rank 0 is there
//   <token>/...  keys of this world; rank/<r> counts the processes that claimed rank r: must be 1;
//                left counts the other ranks that have left in good order
//
// Owner: Context, on its thread. Every wait has a deadline.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "ddprun/store.h"
#include "worker_lib/store/core/start_plan.h"
#include "worker_lib/store/hosted_store.h"
#include "worker_lib/store/init_file.h"

namespace ddprun {

struct WorldStoreOptions {
  StartPlan plan;                            // for a world with more than one rank
  std::shared_ptr<Store> given;              // kGivenStore
  std::optional<std::string> local_address;  // in the form that find_local_address() reads
  Duration timeout{};
};

class WorldStore {
 public:
  // Opens the store. kConnection, kTimeout: the store or rank 0 did not come. Ranks other than 0
  // wait for the whole timeout. Rank 0 waits some seconds for an earlier run that has not ended
  // yet.
  static Result<std::unique_ptr<WorldStore>> open(const WorldStoreOptions& options);
  // Releases the store for another world, on rank 0, and ends the store that it hosts.
  ~WorldStore();
  WorldStore(const WorldStore&) = delete;
  WorldStore& operator=(const WorldStore&) = delete;

  const std::shared_ptr<Store>& store() const { return parts_.store; }
  // Returns a name that is unique in the store; every key of this world begins with it.
  const std::string& name() const { return parts_.name; }
  // Returns the numeric address at which ranks on other hosts reach this one.
  const std::string& address() const { return parts_.address; }

  // Removes the init file. Call it when all ranks have found each other: ranks that come later
  // belong to another world.
  void world_is_formed();

  // Leaves in good order. Rank 0 releases the store for another world. If it hosts the store, it
  // then waits, for at most `patience`, until the other ranks have left. Returns true if they
  // have, or if it hosts none. The others announce their leaving in the store, because they may
  // already have connected again for the next world.
  bool await_leave(Duration patience);

 private:
  // The resources of this rank, in the order in which they are made.
  struct Parts {
    std::unique_ptr<HostedStore> hosted;  // null: another process hosts it
    std::shared_ptr<Store> store;
    std::optional<PublishedAddress> note;
    std::string claimed;  // on rank 0, the prefix of the keys that it has claimed in the store
    // If rank 0 hosts the store: the key that counts the ranks that have left.
    std::string departures;
    std::int64_t others = 0;  // number of ranks that must leave
    std::string name;
    std::string place;  // in a launcher's store: the key by which this process counts its worlds
    std::string address;
  };
  class Opening;

  explicit WorldStore(Parts parts) : parts_(std::move(parts)) {}
  void release();
  std::int64_t count_departures(std::int64_t more);

  Parts parts_;
};

}  // namespace ddprun
