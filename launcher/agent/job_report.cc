#include "launcher/agent/job_report.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/exit_codes.h"
#include "base/signal_names.h"
#include "launcher/supervisor/core/verdict_report.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

JobReport::JobReport(Logger& log, FileWork& files, const LaunchOptions& options)
    : log_(log),
      files_(files),
      job_(options.rdzv_id),
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

void JobReport::end(int exit_code, bool is_first_node) {
  files_.forget_lease();
  std::string headline = last_trouble_;
  bool rank_0_is_lost = false;
  if (verdict_) {
    headline = verdict_->headline;
    rank_0_is_lost = std::ranges::any_of(verdict_->ends, [](const WorkerEnd& end) {
      return end.kind == EndKind::kNodeLost && end.node_rank == NodeRank(0) && !end.host.empty();
    });
  } else if (exit_code > exit_code_of_signal(0)) {
    headline = "ddprun received " + signal_name(exit_code - exit_code_of_signal(0));
  }
  if (lost_output_) headline = "output of workers was lost: stdout or stderr did not accept it";
  const JobOutcome outcome{.exit_code = exit_code, .headline = headline, .verdict = verdict_};
  write([file = file_, outcome, is_first_node, rank_0_is_lost]() -> Result<void> {
    if (!is_first_node && file.is_anothers(rank_0_is_lost)) return {};
    return file.end(outcome);
  });
}

void JobReport::write(std::function<Result<void>()> body) {
  if (file_.path().empty()) return;
  const std::string doing = "--report-file: write " + file_.path();
  const Result<void> written = files_.run_or_keep(doing, std::move(body));
  if (!written) log_.warning(written.error().message());
}

}  // namespace ddprun
