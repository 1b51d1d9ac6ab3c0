// JobState, ServiceState: what a restarted service must know to continue its jobs.
// rendezvous/persistence/state_codec.h converts it to text, and
// rendezvous/persistence/core/journal.h keeps it. Agents report the rest when they come back:
// which nodes are connected, spares, and running workers. Value types; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/enum_names.h"
#include "rendezvous/accounts/core/generation_history.h"
#include "rendezvous/accounts/core/restart_budget.h"
#include "rendezvous/accounts/core/time_books.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

enum class JobPhase { kForming, kRunning, kEnded };  // rendezvous/membership/core/membership.h

// Names in pages and in the journal.
inline constexpr EnumNames<JobPhase, 3> kJobPhaseWords{{{JobPhase::kForming, "forming"},
                                                        {JobPhase::kRunning, "running"},
                                                        {JobPhase::kEnded, "ended"}}};

// Place: a node that has been told to run the newest generation, and may have workers of it.
struct Place {
  NodeSpec node;
  Assignment assignment;
};

struct JobState {
  JobSpec spec;
  JobPhase phase = JobPhase::kForming;
  Generation generation{-1};
  int restarts_used = 0;
  std::vector<Duration> restart_ages = {};  // of the restarts that a window counts
  Strikes strikes = {};
  std::string reason;              // why the newest generation was formed, or the next one will be
  bool failed = false;             // the newest generation failed and is being ended
  std::vector<WorkerEnd> ends;     // of its workers, an excerpt; not empty if it failed
  std::optional<Verdict> ending;   // the job ends with this when no workers are left
  std::optional<Verdict> verdict;  // set in kEnded
  std::vector<Place> places;       // by agent id; empty in kEnded
  std::vector<std::string> missing;  // hosts of the newest generation that are gone
  std::map<std::string, int>
      node_failures;                     // by host: how often its workers were the first to fail
  std::optional<BooksState> books = {};  // nullopt: an older version has written the state
  std::vector<GenerationRecord> generations = {};  // as GenerationHistory::records()
};

struct JobRecord {
  std::string instance;
  std::string former_instance;  // in an earlier run of the service without kept state
  // Counts the jobs of the service in the order of their end. 0: it has not ended, or it ended in
  // an older version that did not record this.
  std::uint64_t end_number = 0;
  std::optional<UserId> owner = {};  // of the job; nullopt: no user was proved
  JobState state;
};

// ServiceState: all that a service knows and its agents do not.
struct ServiceState {
  std::string service_id;        // prefix of every instance; empty: nothing was kept
  std::uint64_t jobs_begun = 0;  // so that every instance is unique
  std::map<std::string, JobRecord> jobs;
};

// StateChange: a change of ServiceState. Each is complete in itself, so only the newest of
// each subject counts.
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
