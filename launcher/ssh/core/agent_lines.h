// AgentLines: decides which lines of the hosts' own ddpruns the console gets, so that many agents
// do not repeat each other. Pure; one owner thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/clock.h"

namespace ddprun {

class AgentLines {
 public:
  // Returns the lines that are shown. lines: whole lines of a host's stderr. Lines that do not
  // begin with "ddprun: " are always shown. A line of ddprun is dropped if another host has said
  // the same within kAlike. is_starting: not all agents have started; a line about nodes that are
  // waited for is held then, because it is old as soon as they are there.
  std::string shown(int host, std::string_view lines, TimePoint now, bool is_starting);

  // Returns the line that is held, and forgets it. Empty: none is held, or a later line came.
  std::string take_held();
  bool holds() const { return !held_.empty(); }

 private:
  static constexpr std::size_t kMostLines = 10000;  // then it forgets all
  static constexpr Duration kAlike = std::chrono::seconds(10);

  struct Said {
    int host = 0;
    TimePoint at{};
  };
  std::unordered_map<std::string, Said> said_;  // what was shown, by line
  std::string held_;
};

}  // namespace ddprun
