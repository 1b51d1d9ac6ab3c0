#include "rendezvous/protocol/core/verdict.h"

namespace ddprun {
namespace {

// Parts of a headline. Older versions look for them, so the texts must not change.
constexpr std::string_view kStopped = "the job was stopped: ";
constexpr std::string_view kNotRestarted = "; not restarted: ";

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

}  // namespace ddprun
