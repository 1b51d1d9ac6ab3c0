// What of a job outlives the service that runs it: what a restarted service must know to go on
// with the job where it was. rendezvous/persistence/state_codec.h turns it into text, rendezvous/persistence/core/journal.h
// keeps it. Agents say the rest again when they come back: who is connected, spares, what runs.
// Value types; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/enum_names.h"
#include "rendezvous/membership/core/restart_budget.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

enum class JobPhase { kForming, kRunning, kEnded };  // rendezvous/membership/core/membership.h

// In pages and in the journal.
inline constexpr EnumNames<JobPhase, 3> kJobPhaseWords{{{JobPhase::kForming, "forming"},
                                                    {JobPhase::kRunning, "running"},
                                                    {JobPhase::kEnded, "ended"}}};

// A node that has been told to run the newest generation, and may have workers of it.
struct Place {
  NodeSpec node;
  Assignment assignment;
};

struct JobState {
  JobSpec spec;
  JobPhase phase = JobPhase::kForming;
  Generation generation{-1};
  int restarts_used = 0;
  std::vector<Duration> restart_ages = {};  // of those that a window counts
  Strikes strikes = {};
  std::string reason;   // for which the newest generation was formed, or the next one will be
  bool failed = false;  // the newest generation failed and is being ended
  std::vector<WorkerEnd> ends;       // how; not empty if it failed. An excerpt
  std::optional<Verdict> ending;     // what the job ends with when nothing of it is left
  std::optional<Verdict> verdict;    // set in kEnded
  std::vector<Place> places;         // by agent id; empty in kEnded
  std::vector<std::string> missing;  // hosts of the newest generation that are gone
  std::map<std::string, int>
      node_failures;  // by host: how often its workers were the first to fail
};

struct JobRecord {
  std::string instance;
  std::string former_instance;  // in a life of the service that nothing was kept of
  // The how-manyth of all jobs to end; 0: it has not ended, or in a life that did not say.
  std::uint64_t end_number = 0;
  std::optional<UserId> owner = {};  // whose job it is; nullopt: nobody has proved that
  JobState state;
};

// All that a service knows and its agents do not.
struct ServiceState {
  std::string service_id;        // begins every instance; empty: nothing was kept
  std::uint64_t jobs_begun = 0;  // so that no instance is given out twice
  std::map<std::string, JobRecord> jobs;
};

// A change of it. Each says all there is to say about its subject: the newest one counts.
struct ServiceBegun {
  std::string service_id;
  std::uint64_t jobs_begun = 0;
};
struct JobChanged {
  JobRecord record;  // of the job record.state.spec.id
};
struct JobForgotten {
  std::string id;
};
using StateChange = std::variant<ServiceBegun, JobChanged, JobForgotten>;

}  // namespace ddprun
