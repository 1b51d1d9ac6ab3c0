// ClusterSim: the real JobTable, AgentLink and Supervisor cores of a whole cluster, wired to a
// simulated clock, network and process table. One seed decides everything that happens, so a
// failure replays.
//
// Faults: workers that crash, hang, ignore SIGTERM; agents that are killed (their workers die with
// them) and come back as new agents or never; cables that are cut and healed; connections that are
// reset; messages and name servers that are slow; a service that is killed and comes back, in one
// half of the seeds knowing nothing, in the other with the journal it wrote, whose last write may be
// torn; its disk, which may be slow or full. After every event the invariants of membership.h and
// supervisor.h are checked:
//   - no worker of generation g+1 starts while one of g or older is alive anywhere;
//   - ranks of a generation are 0..n-1, each once;
//   - restarts never exceed the budget; generations only grow;
//   - with a journal all of this holds over every life of the service, and no generation has two
//     sets of ranks;
//   - all agents that leave with a verdict leave with the same code.
// When the faults have stopped, the job must end within a bounded time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "launcher/core/supervisor.h"
#include "rendezvous/core/agent_link.h"
#include "rendezvous/core/job_table.h"
#include "rendezvous/core/journal.h"

namespace ddprun::sim {

// What was injected: a run of many seeds that lacks a kind of fault proves less than it seems to.
struct FaultCounts {
  int worker_crashes = 0;
  int stubborn_workers = 0;
  int agent_kills = 0;
  int cuts = 0;
  int resets = 0;
  int signals = 0;
  int service_restarts = 0;
  int torn_writes = 0;
  int full_disks = 0;
};

struct SimResult {
  std::string violation;  // empty: all is well
  std::string trace;      // the last events
  FaultCounts faults;
  int generations = 0;
  int take_overs = 0;  // of a running generation, by a service that was restarted
  int exit_code = -1;  // of the job; -1: no agent left with a verdict
};

class ClusterSim {
 public:
  explicit ClusterSim(std::uint64_t seed);
  ~ClusterSim();

  // Runs to the end of the job, or to a violation.
  SimResult run();

 private:
  struct Worker;
  struct Connection;
  struct Agent;
  struct Node;

  void at(Duration delay, std::function<void()> what);
  Duration between(int min_ms, int max_ms);
  void note(const std::string& line);
  void violate(const std::string& what);

  void begin_service();
  void restart_service();
  void write_journal();
  void end_write(int life);
  void fill_disk();
  void deliver(ServiceOutput::Send& send);
  bool has_ended() const;
  bool job_is_over();
  void dismiss_strangers();
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

  void connect(Agent& agent);
  void send(Agent& agent, const AgentMessage& message);
  void close(const std::shared_ptr<Connection>& connection, const std::string& why);
  void pump(const std::shared_ptr<Connection>& connection, bool to_service);
  void inject_faults();
  void heal();
  Agent* find(std::uint64_t serial);

  struct Event {
    TimePoint time;
    std::uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  Rng rng_;
  TimePoint now_{std::chrono::seconds(1)};
  TimePoint faults_until_;
  std::uint64_t next_order_ = 0;
  std::uint64_t next_serial_ = 1;
  std::priority_queue<Event> events_;
  std::unique_ptr<JobTable> service_;
  bool service_is_up_ = false;
  bool over_ = false;  // the job has ended; a stranger on the way may begin another
  std::optional<TimePoint> service_armed_;
  bool keeps_state_ = false;
  std::string journal_ = journal_snapshot({});  // what the disk has for sure
  std::string frame_;                           // being written
  std::uint64_t frame_number_ = 0;              // of its last change
  std::vector<JournalEntry> unwritten_;
  std::uint64_t last_change_ = 0;
  std::uint64_t safe_ = 0;
  std::vector<ServiceOutput::Send> held_;
  bool disk_is_full_ = false;
  JobSpec job_;
  std::vector<Node> nodes_;
  std::map<AgentConnectionId, std::shared_ptr<Connection>> connections_;
  std::map<std::int64_t, std::map<int, int>>
      ranks_;                           // generation -> first rank -> end of the block
  std::optional<int> restarts_before_;  // in earlier lives of the service
  std::set<Generation> restarts_;       // in this one
  std::deque<std::string> trace_;
  double crash_rate_ = 0;
  SimResult result_;
};

}  // namespace ddprun::sim
