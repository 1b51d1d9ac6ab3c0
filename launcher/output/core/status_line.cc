#include "launcher/output/core/status_line.h"

#include "base/counted.h"
#include "base/printed.h"

namespace ddprun {
namespace {

std::string hours_minutes_seconds(Duration elapsed) {
  const long long seconds = elapsed / std::chrono::seconds(1);
  return printed("%lld:%02lld:%02lld", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

// Formats with about three digits.
std::string rate_text(double rate) {
  return printed(rate < 10 ? "%.2f" : rate < 100 ? "%.1f" : "%.0f", rate);
}

}  // namespace

std::string status_line(const StatusFacts& facts) {
  std::string text = "ddprun " + facts.job + " | ";
  if (facts.generation < Generation(0)) {
    text += facts.meets_others ? "waiting for nodes" : "starting";
  } else {
    text += "generation " + to_text(facts.generation) + " | " + std::to_string(facts.alive) +
            " of " + std::to_string(facts.slots) + " ranks alive";
    if (facts.world_size > facts.slots) {
      text += " here, " + std::to_string(facts.world_size) + " in all";
    }
  }
  text += " | " + counted(facts.restarts_left, "restart") + " left";
  if (facts.step) {
    text += " | step " + std::to_string(*facts.step);
    if (facts.steps_per_second) text += ", " + rate_text(*facts.steps_per_second) + " steps/s";
  }
  return text + " | " + hours_minutes_seconds(facts.elapsed);
}

}  // namespace ddprun
