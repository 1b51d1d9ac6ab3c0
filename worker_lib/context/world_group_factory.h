// WorldGroupFactory: forms the groups of one world: the group of all ranks, and groups of some
// of them.
//
// Members of a group find each other in the world's store, under a name that each of them
// derives by itself. It consists of the group's ranks, and of the number of groups of the same
// ranks that this rank has formed before. Ranks outside a group take no part in forming it.
// Groups of different ranks may be formed at the same time.
//
// Owned by Context. Its ProcessGroups keep a pointer to it. form_world() is called first and
// once; after it any thread may form groups. The program decides their order.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/worker_env.h"
#include "ddprun/backend_kind.h"
#include "ddprun/process_group.h"
#include "worker_lib/context/core/backend_choice.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/flight/worker_reporter.h"
#include "worker_lib/group/factory.h"
#include "worker_lib/group/late_checks.h"
#include "worker_lib/store/world_store.h"

namespace ddprun {

class BackendFactory;

struct WorldGroupFactoryOptions {
  WorkerEnv env;  // this rank's place in the world
  torch::Device device{torch::kCPU};
  BackendChoice backends;
  const BackendFactory* nccl = nullptr;      // makes the nccl backends, if one is chosen
  std::vector<BackendKind> custom_backends;  // of the program; makes the chosen ones
  WorldStore* store = nullptr;               // null in a world of one
  std::shared_ptr<WorkerReporter> reporter;
  Duration timeout{};  // default of calls
  Verify verify;
  bool deterministic_across_layouts = false;
  bool compare_calls = true;  // of nccl backends
};

class WorldGroupFactory : public GroupFactory {
 public:
  explicit WorldGroupFactory(WorldGroupFactoryOptions options);

  // Forms the group of all ranks.
  Result<std::unique_ptr<ProcessGroup>> form_world(Duration timeout);
  // Returns whether a CPU engine of the group of all ranks has failed. Call while that group
  // lives.
  bool world_has_failed() const;

  Result<std::unique_ptr<ProcessGroup>> form(const std::vector<int>& ranks,
                                             const GroupOptions& options,
                                             std::optional<Duration> timeout_override = {},
                                             std::shared_ptr<void> seed = nullptr) override;

 private:
  class Forming;

  const WorldGroupFactoryOptions options_;
  // The checks of all groups: a module may train with one group, and a checkpoint be saved with
  // another.
  const std::shared_ptr<detail::LateChecksOfGroup> late_checks_ =
      std::make_shared<detail::LateChecksOfGroup>();
  // The world's store, for the threads that use its groups; null in a world of one.
  std::shared_ptr<Store> store_;
  // The CPU engines of the world's group, which outlives the forming of all groups.
  std::vector<const CpuGroup*> world_engines_;
  std::mutex counts_mutex_;
  // The number of groups formed, by group_key(). Guarded by counts_mutex_.
  std::map<std::string, int> groups_of_ranks_;
};

}  // namespace ddprun
