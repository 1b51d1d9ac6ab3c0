#include "launcher/supervisor/core/verdict_report.h"

#include <algorithm>

#include "base/concat.h"
#include "base/signal_names.h"
#include "rendezvous/protocol/core/hints.h"

namespace ddprun {
namespace {

std::string fate_of_the_other(const WorkerEnd& end, const WorkerEnd& first) {
  std::string text = describe(end);
  if (end.after_stop) return text + " when ddprun stopped it";
  if (end.kind == EndKind::kNodeLost) return text;
  return concat(text, ", ", std::max(Duration(0), first.age - end.age), " after the first");
}

std::string exit_code_text(const Verdict& verdict, const WorkerEnd& first) {
  std::string text = concat("exit code ", verdict.exit_code);
  if (first.kind == EndKind::kSignaled && verdict.exit_code == exit_code_of(first)) {
    text += concat(" (128 + ", first.code, ", ", signal_name(first.code), ")");
  }
  return text;
}

void add_frames(const WorkerEnd& end, std::vector<std::string>& lines) {
  if (end.frames.empty()) return;
  lines.emplace_back("  stack, innermost last:");
  for (const std::string& frame : end.frames) lines.push_back("    | " + frame);
}

// Returns the last lines of stderr without a traceback that message and frames already show.
std::vector<std::string> remaining_lines(const WorkerEnd& end) {
  std::vector<std::string> lines = end.stderr_tail;
  if (end.message.empty() || end.frames.empty()) return lines;
  const std::string said = end.message.substr(0, end.message.find('\n'));
  const auto last = std::find(lines.rbegin(), lines.rend(), said);
  if (last == lines.rend()) return lines;
  const auto begin = std::find(last, lines.rend(), "Traceback (most recent call last):");
  lines.erase(begin == lines.rend() ? lines.begin() : begin.base() - 1, last.base());
  return lines;
}

void add_first(const WorkerEnd& first, std::vector<std::string>& lines) {
  if (!first.message.empty() && is_of_process(first))
    lines.push_back("  its message: " + first.message);
  add_frames(first, lines);
  if (const std::vector<std::string> remaining = remaining_lines(first); !remaining.empty()) {
    lines.emplace_back("  its last lines on stderr:");
    for (const std::string& line : remaining) lines.push_back("    | " + line);
  }
  if (const std::string hint = hint_for(first); !hint.empty()) lines.push_back("  hint: " + hint);
}

void add_ends(const Verdict& verdict, std::vector<std::string>& lines) {
  const std::vector<WorkerEnd>& ends = verdict.ends;
  const WorkerEnd& first = ends.front();
  const std::size_t known = ends.size() + static_cast<std::size_t>(verdict.more_ends);
  constexpr std::size_t kFirstsShown = 4;
  constexpr std::size_t kShown = 16;
  const bool is_hang = first.kind == EndKind::kHung;
  const std::size_t firsts =
      std::min(is_hang ? kEndsInFull : kFirstsShown, count_possible_firsts(ends));
  const bool is_victim = first.blames >= 0;
  lines.push_back("first failure: " + describe(first));
  // In a hang, the stack of each candidate may show the reason.
  if (is_hang) add_first(first, lines);
  for (std::size_t i = 1; i < firsts; ++i) {
    lines.push_back("or, at about the same time: " + describe(ends[i]));
    if (is_hang) add_frames(ends[i], lines);
  }
  if (!is_hang) add_first(first, lines);
  if (!verdict.seen.empty()) {
    lines.emplace_back("what all ranks were doing:");
    for (const std::string& one : verdict.seen) lines.push_back("  " + one);
  }
  const std::size_t shown = std::min(firsts + kShown, ends.size());
  std::size_t blamed = 0;
  for (std::size_t i = firsts; i < shown; ++i) {
    if (!is_blamed(ends[i], ends, firsts)) continue;
    lines.push_back("blamed: " + fate_of_the_other(ends[i], first));
    ++blamed;
  }
  const auto is_same = [&](const WorkerEnd& end) {
    return !is_blamed(end, ends, firsts) && is_same_failure(end, first);
  };
  std::size_t same = 0;
  for (std::size_t i = firsts; i < shown; ++i) {
    if (!is_same(ends[i])) continue;
    if (same++ == 0) lines.emplace_back("failed in the same way:");
    lines.push_back("  " + fate_of_the_other(ends[i], first));
  }
  if (known == firsts + blamed + same) return;
  lines.emplace_back(is_victim ? "the others:" : "the others, probably its victims:");
  for (std::size_t i = firsts; i < shown; ++i) {
    if (is_blamed(ends[i], ends, firsts) || is_same(ends[i])) continue;
    lines.push_back("  " + fate_of_the_other(ends[i], first));
  }
  if (known > shown) lines.push_back(concat("  ... and ", known - shown, " more"));
}

}  // namespace

std::string restarts_of(const Verdict& verdict) {
  // --restart-window and --restart-on-progress do not count all restarts.
  const std::string of_max =
      verdict.restarts_used > verdict.max_restarts ? "" : concat(" of ", verdict.max_restarts);
  return concat(verdict.restarts_used, of_max, " restarts");
}

std::vector<std::string> failure_report(const std::string& job_id, const Verdict& verdict) {
  if (verdict.success) return {};
  std::vector<std::string> lines;
  const bool was_stopped = verdict.cause == VerdictCause::kStopped;
  std::string headline = "job '" + job_id + "'" + (was_stopped ? " ended" : " failed");
  if (verdict.max_restarts > 0) {
    headline += " after " + restarts_of(verdict);
  }
  if (verdict.ends.empty()) {
    lines.push_back(headline + ": " + verdict.headline);
    return lines;
  }
  lines.push_back(concat(headline, " in generation ", verdict.generation));
  add_ends(verdict, lines);
  if (!verdict.not_restarted_because.empty()) {
    lines.push_back("not restarted: " + verdict.not_restarted_because);
  }
  lines.push_back(exit_code_text(verdict, verdict.ends.front()));
  return lines;
}

std::vector<std::string> restart_report(const Verdict& failed) {
  std::vector<std::string> lines{concat("generation ", failed.generation, " failed")};
  if (!failed.ends.empty()) add_ends(failed, lines);
  return lines;
}

}  // namespace ddprun
