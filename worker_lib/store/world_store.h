// WorldStore: where the ranks of a world meet: the store, this rank's right to its place in it,
// and, on rank 0 where no launcher does it, the hosting of it.
//
//   a launcher's store   is used as it is: its ranks are one generation, and it is theirs alone; those
//                        that begin again meet under the next number
//   any other            rank 0 hosts it (or finds it: ddp-store, a store of the program's own),
//                        claims it for its world and says so in it; each other rank waits for that,
//                        and takes its place. So a rank of another job, one that comes twice, and
//                        one that begins while an earlier run still ends are told from those who
//                        belong together.
//
// In a store without a launcher, under "ddprun/by-hand/<run id>/generation-<g>/":
//   host         counts those who are rank 0 there: one
//   world        "<size> <token>", once rank 0 is there
//   <token>/...  keys of this world; rank/<r> counts those who are rank r: one; left, the others that
//                have left in good order
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
  StartPlan plan;                            // of a world of more than one
  std::shared_ptr<Store> given;              // kGivenStore
  std::optional<std::string> local_address;  // as find_local_address() reads it
  Duration timeout{};
};

class WorldStore {
 public:
  // kConnection, kTimeout: the store or rank 0 did not come. A rank other than 0 waits for all of
  // the timeout; rank 0 some seconds for an earlier run to end that is still there.
  static Result<std::unique_ptr<WorldStore>> open(const WorldStoreOptions& options);
  // Rank 0 gives the store free for another world, and ends the one that it hosts.
  ~WorldStore();
  WorldStore(const WorldStore&) = delete;
  WorldStore& operator=(const WorldStore&) = delete;

  const std::shared_ptr<Store>& store() const { return parts_.store; }
  // Unique in the store; begins every key of this world.
  const std::string& name() const { return parts_.name; }
  // Numeric: at which ranks on other hosts reach this one.
  const std::string& address() const { return parts_.address; }

  // Everybody has found everybody: the file has done its service, and who comes next is of another world.
  void world_is_formed();

  // The end in good order. Rank 0 gives the store free for another world, then waits until the others have
  // left the one that it hosts, at most so long: true when they have, or it hosts none. They tell it so,
  // as they may be at its door again, for the next world.
  bool await_leave(Duration patience);

 private:
  // What is held, in the order in which it is made.
  struct Parts {
    std::unique_ptr<HostedStore> hosted;  // null: others host it
    std::shared_ptr<Store> store;
    std::optional<PublishedAddress> note;
    std::string claimed;      // what this rank 0 holds in the store: begins its keys
    std::string departures;   // of a store that rank 0 hosts: the key that counts who has left
    std::int64_t others = 0;  // that are to leave
    std::string name;
    std::string place;  // of a launcher's store: what this process's worlds are counted by
    std::string address;
  };
  class Opening;

  explicit WorldStore(Parts parts) : parts_(std::move(parts)) {}
  void release();
  std::int64_t count_departures(std::int64_t more);

  Parts parts_;
};

}  // namespace ddprun
