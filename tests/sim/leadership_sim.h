// LeadershipSim: several simulated services that stand for leader through one simulated etcd. It
// connects the real Leadership and FencedWrites cores to a simulated clock, network and etcd. One
// seed decides everything that happens, so a failure can be replayed.
//
// A service is reduced to what leadership concerns. It acknowledges heartbeats while it serves. It
// counts the decisions on each of a few jobs, and tells a decision when it is durable.
//
// Faults:
// - Services are killed and come back, resign, are stopped for a while, or are cut off from etcd,
// both
//   ways or one way. Standbys learn of a killed leader at once, or not. Some take a living leader
//   for gone.
// - Requests and answers are slow, are lost, or arrive after they were given up. Requests arrive
//   twice. Watches are silent.
// - etcd has elections: nothing is answered, and afterwards every lease has its whole time again.
// - Clocks run at different rates.
//
// Invariants:
// - At any revision at most one term acts: every write is of the term that the leader key has.
// - A decision that was told is never undone, and none of a number is told twice.
// - A service that serves has the largest term of all that have led. If a standby has revoked its
//   lease, it stops within that lease.
// - After the last fault a decision is told within a bounded time, and nothing durable is held
// back.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/membership/core/leadership.h"
#include "rendezvous/persistence/core/fenced_writes.h"
#include "tests/sim/simulation.h"

namespace ddprun::sim {

// Mutant: a mistake that is planted into the simulation, which must find it.
enum class Mutant {
  kNone,
  kNoFence,     // etcd does not compare the term
  kNoChain,     // etcd does not compare the last write
  kWrongClock,  // the clock of a stopped service stands still
  kPartlyRead,  // a new leader serves before it has read all jobs
};

enum class LeadershipFault {
  kKill,
  kResign,
  kStop,
  kCut,
  kOneWayCut,
  kLostRequest,
  kLostAnswer,
  kLateRequest,
  kRepeatedRequest,
  kElection,
  kSilentWatch,
  kSeenGone,
  kFalselySeenGone,
  kSuspended,
  kResumed,
  kFenced,
  kTermsOfSeveral,
};
inline constexpr EnumNames<LeadershipFault, 17> kLeadershipFaults{{
    {LeadershipFault::kKill, "services killed"},
    {LeadershipFault::kResign, "services that resign"},
    {LeadershipFault::kStop, "services stopped for a while"},
    {LeadershipFault::kCut, "services cut off from etcd"},
    {LeadershipFault::kOneWayCut, "services cut off one way"},
    {LeadershipFault::kLostRequest, "requests lost"},
    {LeadershipFault::kLostAnswer, "answers lost"},
    {LeadershipFault::kLateRequest, "requests performed after they were given up"},
    {LeadershipFault::kRepeatedRequest, "requests that arrive twice"},
    {LeadershipFault::kElection, "elections of etcd"},
    {LeadershipFault::kSilentWatch, "watches that say nothing"},
    {LeadershipFault::kSeenGone, "killed leaders that a standby has seen"},
    {LeadershipFault::kFalselySeenGone, "living leaders taken for gone"},
    {LeadershipFault::kSuspended, "leaders suspended by their own clock"},
    {LeadershipFault::kResumed, "leaders that went on in their term"},
    {LeadershipFault::kFenced, "writes of a former leader refused"},
    {LeadershipFault::kTermsOfSeveral, "jobs with decisions of several terms"},
}};

struct LeadershipResult {
  std::string violation;  // empty: no invariant was violated
  std::string trace;
  Counts<LeadershipFault, kLeadershipFaults.size()> seen;
  int terms = 0;
  int decisions = 0;  // told
};

class LeadershipSim : private Simulation {
 public:
  explicit LeadershipSim(std::uint64_t seed, Mutant mutant = Mutant::kNone);

  // Runs until some time after the last fault, or until an invariant is violated.
  LeadershipResult run();

 private:
  struct Key {
    std::string value;
    EtcdRevision created = 0;
    EtcdRevision modified = 0;
    EtcdLease lease = 0;
  };
  struct Job {
    int decisions = 0;
    std::string by;  // who made the last one, and when: it makes each decision unique
  };
  // Decision: one that waits until it is durable.
  struct Decision {
    std::uint64_t change = 0;
    std::size_t job = 0;
    Job state;
  };
  struct Service {
    explicit Service(Leadership the_leadership) : leadership(std::move(the_leadership)) {}
    Leadership leadership;
    std::optional<FencedWrites> writes;  // while it leads
    std::vector<Job> jobs;               // as it knows them
    std::vector<Decision> waiting;
    std::uint64_t changes = 0;
    JournalImage read;  // the answer to ReadState
    EtcdRevision chain_read = 0;
    std::optional<EtcdRevision> watches;  // the leader key, from this revision on
    std::optional<TimePoint> armed;
  };
  struct Host {
    std::optional<Service> service;  // nullopt: killed
    int life = 0;
    double rate = 1;
    Duration stood_still{};  // of its clock, with Mutant::kWrongClock
    TimePoint stopped_until;
    bool cut_up = false;    // etcd receives nothing
    bool cut_down = false;  // the host receives nothing
  };
  void on(std::size_t host, std::function<void(Service&)> what);
  void note(const std::string& line);
  void violate(const std::string& what);
  void saw(LeadershipFault what) { ++result_.seen[what]; }
  bool has_faults() const { return now_ < faults_until_; }

  TimePoint clock_of(const Host& host) const;
  void start(std::size_t host);
  void kill(std::size_t host);
  void resign(std::size_t host);
  void take_away(std::size_t host);
  void stop(std::size_t host);
  void arm(std::size_t host);
  void take(std::size_t host, LeadershipActions actions);
  void ask(std::size_t host, std::function<std::function<void(Service&)>()> perform,
           std::function<void(Service&)> unanswered = nullptr);
  void write(std::size_t host);
  void tell(std::size_t host);
  void beat();
  void decide(std::size_t host);
  void inject_fault();

  // --- etcd ---
  LeaderKey leader_key() const;
  std::pair<bool, FenceState> perform(const FencedWrite& write);
  void put(const std::string& key, const std::string& value, EtcdLease lease);
  void end_lease(EtcdLease lease);
  void report_deletion(std::size_t host, EtcdRevision deleted);
  void expire();
  void elect();

  Mutant mutant_;
  TimePoint faults_until_;
  std::vector<Host> hosts_;
  std::map<std::string, Key> keys_;
  EtcdRevision revision_ = 0;
  std::map<EtcdLease, TimePoint> leases_;  // until when
  EtcdLease next_lease_ = 1;
  TimePoint no_leader_until_;              // etcd has an election
  Duration lease_time_;                    // that etcd grants
  bool is_punctual_ = false;               // leases end at their time, and not later
  std::map<EtcdRevision, TimePoint> led_;  // terms, and when they began to serve
  std::set<EtcdRevision> taken_for_gone_;  // terms whose lease a standby has revoked
  std::map<std::pair<std::size_t, int>, std::string> announced_;
  std::map<std::size_t, int> last_announced_;  // by job
  std::map<std::size_t, EtcdRevision> announced_in_;
  std::optional<TimePoint> announced_at_;
  LeadershipResult result_;
};

}  // namespace ddprun::sim
