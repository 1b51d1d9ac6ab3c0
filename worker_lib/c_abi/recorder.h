// Records the calls of a group of the library in the worker page, for `ddprun flight`,
// --hang-timeout and the errors of other ranks (worker_lib/flight).
//
// A ddprun_cpu_group owns its CallRecorder, and guards it with its mutex. The record of a call ends
// on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/worker_env.h"
#include "base/worker_page.h"
#include "worker_lib/collective/element_type.h"
#include "worker_lib/flight/worker_reporter.h"

namespace ddprun {

// Returns the launcher's variables. If there is no launcher or one is missing: those of this rank
// on node 0.
WorkerEnv launcher_environment(Rank rank);

// Returns the reporter of this process, which all its groups share. The first call reads the
// launcher's variables. rank: of a process without a launcher.
std::shared_ptr<WorkerReporter> reporter_of_process(Rank rank = Rank(0));

FlightType flight_type_of(ElementType type);

class CallRecorder {
 public:
  // Records the calls from now on. id: 0 is the world, which is not registered.
  // world_ranks: by rank of the group.
  void start(std::shared_ptr<WorkerReporter> reporter, std::uint64_t id, std::string_view name,
             std::vector<int> world_ranks);

  // Begins the record of a call. facts.peer is a rank of the group; it is counted and placed here.
  FlightTicket begin(FlightEntry facts);

 private:
  std::shared_ptr<WorkerReporter> reporter_;  // null: calls are not recorded
  std::uint64_t id_ = 0;
  std::vector<int> world_ranks_;
  std::uint64_t collectives_ = 0;  // until now
};

}  // namespace ddprun
