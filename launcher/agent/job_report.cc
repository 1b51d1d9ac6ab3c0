#include "launcher/agent/job_report.h"

#include <set>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/exit_codes.h"
#include "base/is_control.h"
#include "base/signal_names.h"
#include "launcher/agent/end_command.h"
#include "launcher/supervisor/core/verdict_report.h"
#include "rendezvous/net/tcp_address.h"
#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

namespace {

// The kernel limits a variable of the environment to 128 KiB.
constexpr std::size_t kHeadlineBytes = 4096;

// The console stays quiet for short jobs. Without steps and restarts there is nothing to say.
bool is_worth_a_line(const JobTimes& times) {
  return times.wall() >= std::chrono::minutes(1) && (times.has_steps || times.restarts() > 0);
}

}  // namespace

JobReport::JobReport(Logger& log, FileWork& files, const LaunchOptions& options)
    : log_(log),
      files_(files),
      job_(options.rdzv_id),
      on_end_(options.on_end),
      on_failure_(options.on_failure),
      file_(options.report_file, options.rdzv_id, host_name()) {}

void JobReport::trouble(const std::string& text) {
  last_trouble_ = text;
  log_.error(text);
}

void JobReport::restart(const Verdict& failed, bool is_first_node) {
  for (const std::string& line : restart_report(failed)) log_.error(line);
  if (!is_first_node) return;
  file_.add_failure(failed);
  write([file = file_] { return file.write_running(); });
}

void JobReport::verdict(const Verdict& verdict, bool is_first_node) {
  verdict_ = verdict;
  log_verdict(verdict, is_first_node);
  if (is_first_node && verdict.times && is_worth_a_line(*verdict.times))
    log_.info(goodput_text(*verdict.times));
}

void JobReport::log_verdict(const Verdict& verdict, bool is_first_node) {
  if (verdict.success) {
    if (verdict.restarts_used > 0) {
      log_.info("job '" + job_ + "' succeeded after " + restarts_of(verdict));
    }
    return;
  }
  const std::vector<std::string> lines = failure_report(job_, verdict);
  // Print the full report on the first node and on the node that failed, where users look.
  const bool here = !verdict.ends.empty() && verdict.ends.front().host == host_name();
  if (!here && !is_first_node && verdict.cause == VerdictCause::kFailure) {
    return log_.error(lines.front() + ": " + verdict.headline);
  }
  for (const std::string& line : lines) log_.error(line);
}

JobOutcome JobReport::outcome(int exit_code) const {
  std::string headline = last_trouble_;
  if (verdict_) {
    headline = verdict_->headline;
  } else if (exit_code > exit_code_of_signal(0)) {
    headline = "ddprun received " + signal_name(exit_code - exit_code_of_signal(0));
  }
  if (lost_output_) headline = "output of workers was lost: stdout or stderr did not accept it";
  return {.exit_code = exit_code, .headline = headline, .verdict = verdict_};
}

// Returns the first node that was not lost when the job ended.
NodeRank JobReport::first_node_left() const {
  std::set<NodeRank> lost;
  if (verdict_) {
    for (const WorkerEnd& end : verdict_->ends) {
      if (end.kind == EndKind::kNodeLost && !end.host.empty()) lost.insert(end.node_rank);
    }
  }
  NodeRank first(0);
  while (lost.contains(first)) ++first.value;
  return first;
}

void JobReport::end(int exit_code, bool is_first_node) {
  files_.forget_lease();
  const bool rank_0_is_lost = first_node_left() != NodeRank(0);
  write([file = file_, outcome = outcome(exit_code), is_first_node,
         rank_0_is_lost]() -> Result<void> {
    if (!is_first_node && file.is_anothers(rank_0_is_lost)) return {};
    return file.end(outcome);
  });
}

void JobReport::run_end_commands(int exit_code, int signals) {
  const bool is_saved = exit_code == to_int(ExitCode::kSaved);
  const bool failed = exit_code != 0 && !is_saved;
  if (on_end_.empty() && (on_failure_.empty() || !failed)) return;
  const JobOutcome ended = outcome(exit_code);
  EndCommand command{.report = file_.text_of_end(ended)};
  command.headline = concat("job '", job_, "' ",
                            failed     ? concat("failed with exit code ", exit_code)
                            : is_saved ? "was saved"
                                       : "succeeded",
                            ": ", in_one_line(ended.headline));
  command.headline = clipped(command.headline, kHeadlineBytes);
  const auto run = [&](const char* option, const std::string& text) {
    if (text.empty()) return;
    command.text = text;
    const std::string trouble = run_end_command(command, signals);
    if (!trouble.empty()) log_.warning(concat(option, ": ", trouble));
  };
  if (failed) run("--on-failure", on_failure_);
  run("--on-end", on_end_);
}

void JobReport::write(std::function<Result<void>()> body) {
  if (file_.path().empty()) return;
  const std::string doing = "--report-file: write " + file_.path();
  const Result<void> written = files_.run_or_keep(doing, std::move(body));
  if (!written) log_.warning(written.error().message());
}

}  // namespace ddprun
