// AgentLines: decides which lines of the hosts' own ddpruns the console gets, so that many agents
// do not say the same many times. Pure; one owner thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>

namespace ddprun {

class AgentLines {
 public:
  // Returns the lines that are shown. lines: whole lines of a host's stderr. Lines that do not
  // begin with "ddprun: " are always shown. A line of ddprun is dropped if another host has said
  // the same. is_starting: not all agents have started; lines about nodes that are waited for are
  // dropped then, because the head itself names the hosts that are late.
  std::string shown(int host, std::string_view lines, bool is_starting);

 private:
  static constexpr std::size_t kMostLines = 10000;  // then it forgets all

  std::unordered_map<std::string, int> said_by_;  // the first host that said a line
};

}  // namespace ddprun
