// ClusterSim: a whole simulated cluster. It connects the real JobTable, AgentLink, Supervisor
// and KvState cores to a simulated clock, network and process table. One seed decides everything
// that happens, so a failure can be replayed. One seed in eight is a cluster of 200 agents or
// more. One in 200 has 1,000.
//
// Faults:
// - Workers crash, hang or ignore SIGTERM. On some nodes they always crash.
// - Agents are killed, and their workers die with them. Such an agent comes back as a new agent
//   or never. Other agents are slow.
// - Cables are cut, both ways or one way, and are healed.
// - Connections are reset. The messages on their way are lost, or arrive after the first
//   messages of the next connection.
// - Messages arrive twice. Messages and name servers are slow.
// - The service is stopped for a while, embedded in an agent or by itself.
// - The service is killed and comes back. In one half of the seeds it knows nothing. In the
//   other half it has its journal, whose last write may be torn.
// - Another service takes the lead, with the same state and a larger term, in one half of the seeds
//   with a journal. Sometimes the former leader goes on answering because its clock is wrong. Nodes
//   that are cut off from the new leader may still reach it. It can write nothing. An agent that
//   has not seen the new term would follow it; the simulation of leadership shows why it is not
//   there.
// - The disk of the service is slow or full.
//
// Jobs have a fixed size or are elastic. They have spares, every --on-join, and workers that
// announce checkpoints.
//
// After every event the invariants of membership.h and supervisor.h are checked. The cost of
// this does not grow with the cluster. The invariants:
// - No worker of generation g+1 starts while one of g or older is alive anywhere.
// - Ranks of a generation are 0..n-1, each once, on MIN to MAX nodes.
// - Restarts never exceed the budget; generation numbers only grow.
// - A node that joins never ends a generation that --on-join protects from it.
// - With a journal, all of this holds over every life of the service, and no generation has two
//   sets of ranks.
// - All agents that leave with a verdict leave with the same code. The verdict is success only
//   if every worker of the last generation has succeeded.
// - Workers reach only the store of their own generation, which counts each worker once. Every
//   wait there ends with an answer, at a deadline, or with the store.
//
// After the last fault, the job must end within a bounded time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "launcher/supervisor/core/supervisor.h"
#include "rendezvous/client/core/agent_link.h"
#include "rendezvous/membership/core/job_table.h"
#include "rendezvous/membership/core/outbox.h"
#include "rendezvous/persistence/core/journal.h"
#include "tests/sim/simulation.h"
#include "tests/sim/store_sim.h"

namespace ddprun::sim {

// Happening: a fault that was injected, or a result that it must have had. If a run of many
// seeds lacks one of these, it proves less than it seems to.
enum class Happening {
  kWorkerCrash,
  kStubbornWorker,
  kBrokenNode,
  kAgentKill,
  kSlowAgent,
  kCut,
  kOneWayCut,
  kReset,
  kLostMessage,
  kLateMessage,
  kRepeatedMessage,
  kSlowMessage,
  kSignal,
  kRestartAsked,
  kServiceRestart,
  kServiceHeldUp,
  kFormerLeader,
  kEmbeddedService,
  kTornWrite,
  kSlowDisk,
  kFullDisk,
  kLargeCluster,
  kCheckpoint,
  kJoinAtCheckpoint,
  kReplacedNode,
  kTakeOver,
  kJobEndedWell,
};
inline constexpr EnumNames<Happening, 27> kHappenings{{
    {Happening::kWorkerCrash, "worker crashes"},
    {Happening::kStubbornWorker, "workers that ignore SIGTERM"},
    {Happening::kBrokenNode, "nodes where workers always crash"},
    {Happening::kAgentKill, "agents killed"},
    {Happening::kSlowAgent, "slow agents"},
    {Happening::kCut, "cables cut"},
    {Happening::kOneWayCut, "cables cut one way"},
    {Happening::kReset, "connections reset"},
    {Happening::kLostMessage, "messages lost with a connection"},
    {Happening::kLateMessage, "messages behind the next connection's"},
    {Happening::kRepeatedMessage, "messages repeated"},
    {Happening::kSlowMessage, "slow messages"},
    {Happening::kSignal, "signals to agents"},
    {Happening::kRestartAsked, "restarts that a user asked for"},
    {Happening::kServiceRestart, "services killed"},
    {Happening::kServiceHeldUp, "services stopped for a while"},
    {Happening::kFormerLeader, "agents that reach a former leader"},
    {Happening::kEmbeddedService, "services inside an agent"},
    {Happening::kTornWrite, "torn writes"},
    {Happening::kSlowDisk, "slow writes"},
    {Happening::kFullDisk, "full disks"},
    {Happening::kLargeCluster, "clusters of 200 agents or more"},
    {Happening::kCheckpoint, "checkpoints announced"},
    {Happening::kJoinAtCheckpoint, "generations with a newcomer at a checkpoint"},
    {Happening::kReplacedNode, "nodes replaced by a spare"},
    {Happening::kTakeOver, "generations taken over by a service"},
    {Happening::kJobEndedWell, "jobs that ended well"},
}};

using Happenings = Counts<Happening, kHappenings.size()>;

struct SimResult {
  std::string violation;  // empty: no invariant was violated
  std::string trace;      // the last events
  Happenings seen;
  int generations = 0;
  int exit_code = -1;  // of the job; -1: no agent left with a verdict
};

class ClusterSim : private Simulation {
 public:
  explicit ClusterSim(std::uint64_t seed);
  ~ClusterSim();

  // Runs until the job ends or an invariant is violated.
  SimResult run();

 private:
  struct Worker;
  struct Connection;
  struct Agent;
  struct Node;

  void note(const std::string& line);
  void violate(const std::string& what);

  void begin_service();
  void restart_service();
  void hold_up_service();
  void pulse();
  bool service_runs() const { return service_is_up_ && now_ >= held_up_until_; }
  void write_journal();
  void end_write(int life);
  void fill_disk();
  void deliver(ServiceOutput::Send& send);
  void take_from_former(ServiceOutput out);
  ServiceTerm term() const { return has_terms_ ? life_ + 1 : 0; }
  bool has_ended() const;
  bool job_is_over();
  void dismiss_unwelcomed();
  void start_agent(std::size_t node);
  void kill_agent(std::size_t node);
  void arm(Agent& agent);
  void arm_service();
  void take(Agent& agent, LinkActions actions);
  void take(Agent& agent, SupervisorActions actions);
  void take(ServiceOutput out);

  void start_workers(Agent& agent, const Assignment& assignment);
  void end_worker(std::uint64_t agent_serial, int local_rank, EndKind kind, int code);
  void signal_workers(Agent& agent, int signal);
  void check_tree(Agent& agent);
  void check_ranks(const Assignment& assignment, int slots);
  void check_reason(const Assignment& assignment);
  void check_success(const Verdict& verdict);
  void check_times();
  Worker* find_worker(std::uint64_t agent_serial, int local_rank, Generation generation);
  void finish_later(std::uint64_t agent_serial, int local_rank, Generation generation,
                    Duration when);
  void meet(std::uint64_t agent_serial, int local_rank, Generation generation,
            std::uint16_t store_port, TimePoint until);
  void hang_up(Worker& worker);
  void close_store(Agent& agent);
  AgentStatus status_of(const Agent& agent) const;
  void announce_later(std::uint64_t agent_serial, Generation generation);
  void note_who_is_left();
  void bury(Agent& agent);
  Duration lateness(const Node& node);
  void saw(Happening what) { ++result_.seen[what]; }

  void connect(Agent& agent);
  void send(Agent& agent, const AgentMessage& message);
  void close(const std::shared_ptr<Connection>& connection, const std::string& why);
  void pump(const std::shared_ptr<Connection>& connection, bool to_service);
  void inject_faults();
  void inject_fault();
  void ask_for_restart(Node& node);
  void cut(std::size_t node);
  void heal();
  Agent* find(std::uint64_t serial);

  TimePoint faults_until_;
  std::uint64_t next_serial_ = 1;
  std::unique_ptr<JobTable> service_;
  bool service_is_up_ = false;
  std::unique_ptr<JobTable> former_;  // of an earlier life, which still answers until former_until_
  ServiceTerm former_term_ = 0;
  TimePoint former_until_;
  bool is_embedded_ = false;  // what the service is told of itself
  TimePoint held_up_until_;   // until then the service's process is stopped
  bool over_ = false;         // the job has ended; a late agent may begin another one
  std::optional<TimePoint> service_armed_;
  bool keeps_state_ = false;
  bool has_terms_ = false;
  std::string journal_ = journal_snapshot({});  // what is durable on the disk
  std::string frame_;                           // the frame that is being written
  std::uint64_t frame_number_ = 0;              // the number of its last change
  std::vector<JournalEntry> unwritten_;
  std::uint64_t last_change_ = 0;
  Outbox outbox_;
  bool disk_is_full_ = false;
  JobSpec job_;
  std::vector<Node> nodes_;
  std::unordered_map<std::uint64_t, std::size_t> node_of_;  // by an agent's serial number
  std::map<Generation, int> alive_;                         // living workers, by generation
  std::map<Generation, int> ended_well_;                    // workers that succeeded, by generation
  std::map<std::uint16_t, StoreSim> stores_;                // by port
  std::uint16_t next_port_ = 0;
  struct ClientOf {
    std::uint64_t agent;
    int local_rank;
    Generation generation;
  };
  std::map<StoreSim::Client, ClientOf> clients_;
  StoreSim::Client next_client_ = 1;
  std::map<Generation, int> announced_;  // checkpoints, by generation
  int broken_ = -1;                      // the node where workers always crash
  int life_ = 0;                         // of the service
  int books_life_ = 0;                   // the life that check_times() saw last
  std::optional<TimePoint> job_began_;   // by the books of the job
  bool exited_ = false;                  // an agent has exited since the last check
  std::map<AgentConnectionId, std::shared_ptr<Connection>> connections_;
  std::map<Generation, std::map<int, int>> ranks_;  // first rank -> end of the block
  std::optional<int> restarts_before_;              // used in earlier lives of the service
  std::set<Generation> restarts_;                   // used in this life
  std::deque<std::string> trace_;
  double crash_rate_ = 0;
  SimResult result_;
};

}  // namespace ddprun::sim
