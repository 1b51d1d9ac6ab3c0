// StatusReporter: says what this node does: to the service, to commands and in the status line.
//
// It asks the supervisor and the workers, and remembers what is not seen at one moment
// (core/node_progress.h). It decides nothing.
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

  // Return what the service is told. ranks(): empty if the service shows no rank of this node; it
  // shows only the first kMaxRankRows of the job.
  AgentStatus status();
  RankReport ranks();
  // Sends the newest steps to the service, and takes what it has found in those of all nodes.
  void report_steps(const StepsDirective& what);

  // Return what people are told: commands, and the status line.
  NodeView view() const;
  std::vector<RankRow> rank_rows();
  StatusFacts status_facts();

  // A generation begins here. While it runs, node 0 reports its progress now and then, so that the
  // service's pages and books are up to date. A job of this node alone has no such reports: they
  // would wake its agent.
  void generation_began();
  // The workers will end: nothing is known of slow ranks any more.
  void generation_ends() { progress_.set_slow({}); }
  // The workers were suspended (SIGTSTP), or go on.
  void suspended() { progress_.suspended(BootClock::now()); }
  void resumed() { progress_.resumed(BootClock::now()); }

  // Returns the highest step of any generation on this node, as far as it was reported.
  std::optional<std::int64_t> highest_step() const { return progress_.highest_step(); }
  // Returns whether workers were started on this node, in any generation.
  bool has_started_workers() const { return progress_.generation_since().has_value(); }

  // Ends the reports to the service.
  void close();

 private:
  void report_later();
  bool is_running() const { return parts_.supervisor.state() == Supervisor::State::kRunning; }

  const StatusReporterParts parts_;
  const pid_t guardian_;
  const TimePoint started_ = BootClock::now();
  boost::asio::steady_timer timer_;
  NodeProgress progress_;
  StepCollector step_collector_;
  StepRate steps_;
  bool is_closed_ = false;
};

}  // namespace ddprun
