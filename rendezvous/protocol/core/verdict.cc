#include "rendezvous/protocol/core/verdict.h"

#include <cctype>
#include <csignal>

namespace ddprun {
namespace {

// Parts of a headline. Older versions look for them, so the texts must not change.
constexpr std::string_view kStopped = "the job was stopped: ";
constexpr std::string_view kNotRestarted = "; not restarted: ";

// Ends that are not reported in full have shorter texts.
constexpr std::size_t kComparedBytes = 150;

// Returns the text with '#' for each number, because ranks, addresses and times differ.
std::string words_of(const WorkerEnd& end) {
  const std::string& words =
      end.message.empty() && !end.stderr_tail.empty() ? end.stderr_tail.back() : end.message;
  std::string text;
  for (const char c : words.substr(0, kComparedBytes)) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!is_digit) text += c;
    if (is_digit && !text.ends_with('#')) text += '#';
  }
  return text;
}

}  // namespace

Verdict stopped_verdict(int exit_code, std::string_view why) {
  return {.cause = VerdictCause::kStopped,
          .exit_code = exit_code,
          .headline = std::string(kStopped).append(why)};
}

void set_not_restarted(Verdict& verdict, const std::string& why) {
  verdict.not_restarted_because = why;
  verdict.headline.append(kNotRestarted).append(why);
}

void infer_cause(Verdict& verdict) {
  if (verdict.headline.starts_with(kStopped)) {
    verdict.cause = VerdictCause::kStopped;
  } else if (verdict.ends.empty()) {
    verdict.cause = VerdictCause::kTooFewNodes;
  }
  const std::size_t at = verdict.headline.find(kNotRestarted);
  if (at != std::string::npos) {
    verdict.not_restarted_because = verdict.headline.substr(at + kNotRestarted.size());
  }
}

bool is_same_failure(const WorkerEnd& end, const WorkerEnd& first) {
  if (!is_of_process(end) || !is_of_process(first)) return false;
  if (end.blames >= 0 || first.blames >= 0) return false;
  const bool is_alike = end.kind == first.kind && end.code == first.code;
  // SIGKILL cannot be caught: the last line of its process is of something else.
  const bool has_said_why = first.kind != EndKind::kSignaled || first.code != SIGKILL;
  if (end.after_stop ? !has_said_why : !is_alike) return false;
  const std::string words = words_of(first);
  return !words.empty() && words_of(end) == words;
}

}  // namespace ddprun
