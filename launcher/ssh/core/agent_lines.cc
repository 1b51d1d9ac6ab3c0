#include "launcher/ssh/core/agent_lines.h"

#include <algorithm>
#include <utility>

namespace ddprun {

std::string AgentLines::shown(int host, std::string_view lines, TimePoint now, bool is_starting) {
  constexpr std::string_view kOwn = "ddprun: ";
  constexpr std::string_view kWaiting = "ddprun: waiting: ";
  if (!lines.empty()) held_.clear();
  if (lines.find(kOwn) == lines.npos) return std::string(lines);
  std::string text;
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size() - 1) + 1;
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(end);
    held_.clear();
    if (line.starts_with(kOwn)) {
      if (is_starting && line.starts_with(kWaiting)) {
        held_ = line;
        continue;
      }
      if (said_.size() >= kMostLines) said_.clear();
      Said& said = said_.try_emplace(std::string(line), Said{host, now}).first->second;
      if (said.host != host && now < said.at + kAlike) continue;
      said = {host, now};
    }
    text += line;
  }
  return text;
}

std::string AgentLines::take_held() { return std::exchange(held_, ""); }

}  // namespace ddprun
