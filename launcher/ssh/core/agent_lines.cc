#include "launcher/ssh/core/agent_lines.h"

#include <algorithm>

namespace ddprun {

std::string AgentLines::shown(int host, std::string_view lines, bool is_starting) {
  constexpr std::string_view kOwn = "ddprun: ";
  constexpr std::string_view kWaiting = "ddprun: waiting: ";
  if (lines.find(kOwn) == lines.npos) return std::string(lines);
  std::string text;
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size() - 1) + 1;
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(end);
    if (line.starts_with(kOwn)) {
      if (is_starting && line.starts_with(kWaiting)) continue;
      if (said_by_.size() >= kMostLines) said_by_.clear();
      if (said_by_.try_emplace(std::string(line), host).first->second != host) continue;
    }
    text += line;
  }
  return text;
}

}  // namespace ddprun
