#include "launcher/agent/status_reporter.h"

#include <algorithm>
#include <utility>

#include "base/process_tree.h"
#include "launcher/plan/agent_config.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

StatusReporter::StatusReporter(const StatusReporterParts& parts, pid_t guardian)
    : parts_(parts), guardian_(guardian), timer_(parts.io) {}

void StatusReporter::close() {
  is_closed_ = true;
  timer_.cancel();
}

AgentStatus StatusReporter::status() {
  const TimePoint now = BootClock::now();
  AgentStatus status = parts_.supervisor.status(now);
  status.store_port = parts_.store.port();
  status.step = parts_.workers.highest_step();
  status.times = parts_.workers.times();
  status.times.stopped = progress_.suspended_for(now);
  status.log_trouble = log_trouble_;
  progress_.see_step(status.step);
  return status;
}

RankReport StatusReporter::ranks() {
  const std::optional<Assignment>& part = parts_.supervisor.assignment();
  if (is_closed_ || !part || part->first_rank.value >= static_cast<int>(kMaxRankRows)) return {};
  RankReport report{.generation = part->generation, .rows = rank_rows()};
  if (report.rows.size() > kMaxRankRows) report.rows.resize(kMaxRankRows);
  return report;
}

void StatusReporter::report_steps(const StepsDirective& what) {
  for (const std::string& line : what.lines) parts_.log.warning(line);
  const std::optional<Assignment>& part = parts_.supervisor.assignment();
  if (is_closed_ || !is_running() || !part || part->generation != what.generation) return;
  progress_.set_slow(what.slow);
  StepReport report{
      .generation = what.generation,
      .steps = step_collector_.take(parts_.workers.marks(), static_cast<std::size_t>(what.steps))};
  if (what.asks_shares) report.shares = parts_.workers.step_shares();
  parts_.rendezvous.link().send_now(report);
}

void StatusReporter::generation_began() {
  progress_.generation_began(BootClock::now());
  steps_ = {};
  step_collector_.begin();
}

void StatusReporter::report_later() {
  if (parts_.config.rendezvous.is_local()) return;
  timer_.expires_after(progress_.next_pause());
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || is_closed_ || !is_running()) return;
    const std::optional<Assignment>& part = parts_.supervisor.assignment();
    if (part && part->node_rank != NodeRank(0)) return;
    parts_.rendezvous.link().send(status());
    report_later();
  });
}

NodeView StatusReporter::view() const {
  const AgentConfig& config = parts_.config;
  const AgentStatus status = parts_.supervisor.status(BootClock::now());
  NodeView view{.job = config.options.rdzv_id,
                .host = host_name(),
                .pid = guardian_,
                .program = config.options.program,
                .started = started_,
                .phase = status.phase,
                .generation = status.generation,
                .generation_since = progress_.generation_since(),
                .max_restarts = config.options.max_restarts,
                .grace = config.options.grace.value_or(config.default_grace),
                .log_directory = config.scratch_directory.empty() ? config.log_root : ""};
  if (!config.rendezvous.is_local()) view.meets = to_text(parts_.rendezvous.endpoint());
  const std::optional<Assignment>& assignment = parts_.supervisor.assignment();
  if (assignment && assignment->generation == status.generation) view.assignment = assignment;
  view.workers = parts_.workers.views();
  return view;
}

std::vector<RankRow> StatusReporter::rank_rows() {
  std::vector<RankRow> rows = parts_.workers.ranks();
  progress_.mark_slow(rows);
  return rows;
}

StatusFacts StatusReporter::status_facts() {
  const AgentConfig& config = parts_.config;
  steps_.see(parts_.workers.highest_step(), BootClock::now());
  StatusFacts facts{.job = config.options.rdzv_id,
                    .meets_others = config.options.nodes.max > 1,
                    .alive = parts_.workers.count_open(),
                    .slots = config.slots,
                    .restarts_left = config.options.max_restarts,
                    .elapsed = BootClock::now() - started_,
                    .step = steps_.step(),
                    .steps_per_second = steps_.rate()};
  if (const std::optional<Assignment>& assignment = parts_.supervisor.assignment()) {
    facts.generation = assignment->generation;
    facts.world_size = assignment->world_size;
    facts.restarts_left = assignment->restarts_left.value_or(
        std::max(0, config.options.max_restarts - assignment->restart_count));
  }
  return facts;
}

}  // namespace ddprun
