// WorldGroupFactory: forms the groups of one world: that of all ranks, and those of some of them.
//
// Members of a group meet under a name in the world's store that each of them derives by itself:
// the group's ranks, and how many groups of the same ranks this rank has made before. So the others
// take no part, and groups of different ranks may be formed at the same time.
//
// Owned by Context; its ProcessGroups keep a pointer to it. One thread at a time forms groups.
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
  const BackendFactory* nccl = nullptr;  // makes the nccl backends, where one is chosen
  std::vector<BackendKind> foreign;      // likewise
  WorldStore* store = nullptr;           // null in a world of one
  std::shared_ptr<WorkerReporter> reporter;
  Duration timeout{};  // of calls that give none
  Verify verify;
  bool deterministic_across_layouts = false;
  bool compare_calls = true;  // of nccl backends
};

// Any thread may form groups; which one comes first is up to the program.
class WorldGroupFactory : public GroupFactory {
 public:
  explicit WorldGroupFactory(WorldGroupFactoryOptions options);

  // The group of all ranks. peers: gets the engine inside it, which knows whether all is well; null where
  // there is none.
  Result<std::unique_ptr<ProcessGroup>> form_world(Duration timeout, const CpuGroup** peers);

  Result<std::unique_ptr<ProcessGroup>> form(const std::vector<int>& ranks, const GroupOptions& how,
                                             std::optional<Duration> patience = {},
                                             std::shared_ptr<void> seed = nullptr) override;

  int world_size() const { return options_.env.world_size; }
  int world_rank() const { return options_.env.rank.value; }

 private:
  struct Siblings;
  // What the members of a group meet under, and how people know it.
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
  Result<std::unique_ptr<Backend>> form_backends(const GroupBootstrap& bootstrap, const CpuGroup** peers);
  Result<std::unique_ptr<Backend>> form_backend(const std::string& name,
                                                const std::vector<torch::DeviceType>& devices,
                                                const GroupBootstrap& bootstrap, const CpuGroup** peers);
  Result<std::unique_ptr<Backend>> form_foreign(const BackendKind& kind, const GroupBootstrap& bootstrap);
  Result<std::unique_ptr<CpuGroup>> meet(const GroupBootstrap& bootstrap, Elsewhere elsewhere);
  static Elsewhere in_cpu(std::shared_ptr<const Siblings> siblings);
  static Elsewhere in_nccl(std::shared_ptr<const Siblings> siblings);
  std::optional<Error> lost_member(const GroupBootstrap& bootstrap) const;
  std::unique_ptr<ProcessGroup> make_group(std::unique_ptr<Backend> backend, Duration timeout,
                                           GroupIdentity identity) const;

  const WorldGroupFactoryOptions options_;
  // Of all groups: a module may train with one of them, and a checkpoint be saved with another.
  const std::shared_ptr<detail::LateChecksOfGroup> late_checks_ =
      std::make_shared<detail::LateChecksOfGroup>();
  std::shared_ptr<Store>
      store_;  // the world's, for the threads that use its groups; null as that is
  const CpuGroup* world_ =
      nullptr;         // inside the world's group, which outlives all forming; may be null
  std::mutex making_;  // guards what follows
  std::map<std::string, int> made_;  // groups of the same ranks
};

}  // namespace ddprun
