// WorldGroupFactory: forms the groups of one world: the group of all ranks, and groups of some
// of them.
//
// Members of a group find each other in the world's store, under a name that each of them
// derives by itself. It consists of the group's ranks, and of the number of groups of the same
// ranks that this rank has made before. So other ranks take no part, and groups of different
// ranks may be formed at the same time.
//
// Owned by Context. Its ProcessGroups keep a pointer to it. Any thread may form groups.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
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
  const BackendFactory* nccl = nullptr;  // makes the nccl backends, if one is chosen
  std::vector<BackendKind> foreign;      // backends of the program; makes the chosen ones
  WorldStore* store = nullptr;           // null in a world of one
  std::shared_ptr<WorkerReporter> reporter;
  Duration timeout{};  // default of calls
  Verify verify;
  bool deterministic_across_layouts = false;
  bool compare_calls = true;  // of nccl backends
};

// Any thread may form groups; the program decides their order.
class WorldGroupFactory : public GroupFactory {
 public:
  explicit WorldGroupFactory(WorldGroupFactoryOptions options);

  // Forms the group of all ranks. peers: receives the engine inside it, which knows whether the
  // world has failed; null if there is none.
  Result<std::unique_ptr<ProcessGroup>> form_world(Duration timeout, const CpuGroup** peers);

  Result<std::unique_ptr<ProcessGroup>> form(const std::vector<int>& ranks, const GroupOptions& how,
                                             std::optional<Duration> patience = {},
                                             std::shared_ptr<void> seed = nullptr) override;

  int world_size() const { return options_.env.world_size; }
  int world_rank() const { return options_.env.rank.value; }

 private:
  struct Siblings;
  // The key under which the members of a group find each other, and the group's title for
  // people.
  struct GroupBootstrap {
    std::vector<int> ranks;  // of the world
    int own = 0;             // this rank's place among them
    std::string key;         // in the store
    std::string title;       // " in group tp of ranks 1 and 3"; empty: the world
    bool deterministic_across_layouts = false;
    Duration timeout{};
    std::shared_ptr<void> seed = {};
    std::shared_ptr<Siblings> siblings = {};  // of a group of several backends
  };
  using Elsewhere = std::function<std::string(std::span<const int> ranks)>;  // CpuGroupOptions
  Result<std::unique_ptr<Backend>> form_backends(const GroupBootstrap& bootstrap,
                                                 const CpuGroup** peers);
  Result<std::unique_ptr<Backend>> form_backend(const std::string& name,
                                                const std::vector<torch::DeviceType>& devices,
                                                const GroupBootstrap& bootstrap,
                                                const CpuGroup** peers);
  Result<std::unique_ptr<Backend>> form_foreign(const BackendKind& kind,
                                                const GroupBootstrap& bootstrap);
  Result<std::unique_ptr<CpuGroup>> meet(const GroupBootstrap& bootstrap, Elsewhere elsewhere);
  static Elsewhere in_cpu(std::shared_ptr<const Siblings> siblings);
  static Elsewhere in_nccl(std::shared_ptr<const Siblings> siblings);
  std::optional<Error> lost_member(const GroupBootstrap& bootstrap) const;
  std::unique_ptr<ProcessGroup> make_group(std::unique_ptr<Backend> backend, Duration timeout,
                                           GroupIdentity identity) const;

  const WorldGroupFactoryOptions options_;
  // Of all groups: a module may train with one group, and a checkpoint be saved with another.
  const std::shared_ptr<detail::LateChecksOfGroup> late_checks_ =
      std::make_shared<detail::LateChecksOfGroup>();
  // The world's store, for the threads that use its groups; null in a world of one.
  std::shared_ptr<Store> store_;
  // Inside the world's group, which outlives the forming of all groups; may be null.
  const CpuGroup* world_ = nullptr;
  std::mutex making_;                // guards the following
  std::map<std::string, int> made_;  // groups of the same ranks
};

}  // namespace ddprun
