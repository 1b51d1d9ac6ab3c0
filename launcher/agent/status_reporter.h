// StatusReporter: reports the state of this node to the service, to commands and in the status
// line. It reads the supervisor and the workers. NodeProgress keeps what must outlast one report.
//
// Owner: Agent, on its one thread.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "launcher/agent/core/node_progress.h"
#include "launcher/agent/generation_store.h"
#include "launcher/agent/node_workers.h"
#include "launcher/agent/rendezvous_handler.h"
#include "launcher/control/protocol.h"
#include "launcher/hang/core/step_collector.h"
#include "launcher/output/core/status_line.h"
#include "launcher/output/core/step_rate.h"
#include "launcher/supervisor/core/supervisor.h"

namespace ddprun {

struct AgentConfig;

// Parts of the agent that are asked. All of them outlive StatusReporter.
struct StatusReporterParts {
  boost::asio::io_context& io;
  Logger& log;
  const AgentConfig& config;
  const Supervisor& supervisor;
  NodeWorkers& workers;
  const GenerationStore& store;
  RendezvousHandler& rendezvous;
};

class StatusReporter {
 public:
  // guardian: the process that people know as ddprun.
  StatusReporter(const StatusReporterParts& parts, pid_t guardian);

  // Returns the status for the service.
  AgentStatus status();
  // Returns the rows of this node's ranks for the service; empty if it shows none of them: it shows
  // only the first kMaxRankRows of the job.
  RankReport ranks();
  // Sends the newest steps to the service, and takes what it has found in those of all nodes.
  void report_steps(const StepsDirective& what);

  // Returns the state of this node, for commands.
  NodeView view() const;
  // Returns a row for each rank of this node, for commands.
  std::vector<RankRow> rank_rows();
  // Returns what the status line shows.
  StatusFacts status_facts();

  // Begins a generation on this node.
  void generation_began();
  // Sends node 0's status to the service after 1 s, and after ever longer pauses up to 30 s, while
  // the generation runs. It keeps the service's pages and books up to date. Without effect in a job
  // of this node alone: reports would wake its agent.
  void report_later();
  // Forgets the slow ranks, because the workers will end.
  void generation_ends() { progress_.set_slow({}); }
  // Notes what is wrong with the log files (LogWriter).
  void set_log_trouble(const std::string& text) { log_trouble_ = text; }
  // Notes that the workers were suspended (SIGTSTP), or continue.
  void suspended() { progress_.suspended(BootClock::now()); }
  void resumed() { progress_.resumed(BootClock::now()); }

  // Returns the highest step of any generation on this node, as far as it was reported.
  std::optional<std::int64_t> highest_step() const { return progress_.highest_step(); }
  // Returns whether workers were started on this node, in any generation.
  bool has_started_workers() const { return progress_.generation_since().has_value(); }

  // Ends the reports to the service.
  void close();

 private:
  bool is_running() const { return parts_.supervisor.state() == Supervisor::State::kRunning; }

  const StatusReporterParts parts_;
  const pid_t guardian_;
  const TimePoint started_ = BootClock::now();
  boost::asio::steady_timer timer_;
  NodeProgress progress_;
  StepCollector step_collector_;
  StepRate steps_;
  std::string log_trouble_;
  bool is_closed_ = false;
};

}  // namespace ddprun
