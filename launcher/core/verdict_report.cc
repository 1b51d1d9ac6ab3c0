#include "launcher/core/verdict_report.h"

#include <algorithm>

#include "base/signal_names.h"

namespace ddprun {
namespace {

std::string fate_of_the_other(const WorkerEnd& end, const WorkerEnd& first) {
  std::string text = describe(end);
  if (end.after_stop) return text + " when ddprun stopped it";
  if (end.kind == EndKind::kNodeLost) return text;
  return text + ", " + to_text(std::max(Duration(0), first.age - end.age)) + " after the first";
}

std::string exit_code_text(const Verdict& verdict, const WorkerEnd& first) {
  std::string text = "exit code " + std::to_string(verdict.exit_code);
  if (first.kind == EndKind::kSignaled) {
    text += " (128 + " + std::to_string(first.code) + ", " + signal_name(first.code) + ")";
  }
  return text;
}

}  // namespace

std::vector<std::string> failure_report(const std::string& job_id, const Verdict& verdict) {
  if (verdict.success) return {};
  std::vector<std::string> lines;
  std::string headline = "job '" + job_id + "' failed";
  if (verdict.max_restarts > 0) {
    headline += " after " + std::to_string(verdict.restarts_used) + " of " +
                std::to_string(verdict.max_restarts) + " restarts";
  }
  if (verdict.ends.empty()) {
    lines.push_back(headline + ": " + verdict.headline);
    return lines;
  }
  const WorkerEnd& first = verdict.ends.front();
  lines.push_back(headline + " in generation " + to_text(verdict.generation));
  lines.push_back("first failure: " + describe(first));
  if (!first.message.empty() && first.kind != EndKind::kNotStarted &&
      first.kind != EndKind::kNodeLost) {
    lines.push_back("  it said: " + first.message);
  }
  if (!first.stderr_tail.empty()) {
    lines.push_back("  its last lines on stderr:");
    for (const std::string& line : first.stderr_tail) lines.push_back("    | " + line);
  }
  const std::size_t others = verdict.ends.size() - 1 + static_cast<std::size_t>(verdict.more_ends);
  if (others > 0) {
    constexpr std::size_t kShown = 16;
    lines.push_back("the others, its victims as far as one can tell:");
    const std::size_t shown = std::min(kShown, verdict.ends.size() - 1);
    for (std::size_t i = 1; i <= shown; ++i) {
      lines.push_back("  " + fate_of_the_other(verdict.ends[i], first));
    }
    if (others > shown) lines.push_back("  ... and " + std::to_string(others - shown) + " more");
  }
  lines.push_back(exit_code_text(verdict, first));
  return lines;
}

}  // namespace ddprun
