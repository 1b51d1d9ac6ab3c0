#include "launcher/core/status_line.h"

#include <cstdio>

namespace ddprun {
namespace {

std::string hours_minutes_seconds(Duration elapsed) {
  const long long seconds = elapsed / std::chrono::seconds(1);
  char text[32];
  std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", seconds / 3600, seconds / 60 % 60,
                seconds % 60);
  return text;
}

}  // namespace

std::string status_line(const StatusFacts& facts) {
  std::string text = "ddprun " + facts.job + " | ";
  if (facts.generation < Generation(0)) {
    text += "waiting for nodes";
  } else {
    text += "generation " + to_text(facts.generation) + " | " + std::to_string(facts.alive) +
            " of " + std::to_string(facts.slots) + " ranks alive";
    if (facts.world_size > facts.slots) {
      text += " here, " + std::to_string(facts.world_size) + " in all";
    }
  }
  text += " | " + std::to_string(facts.restarts_left) +
          (facts.restarts_left == 1 ? " restart left" : " restarts left");
  return text + " | " + hours_minutes_seconds(facts.elapsed);
}

}  // namespace ddprun
