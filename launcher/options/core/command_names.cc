#include "launcher/options/core/command_names.h"

#include <algorithm>
#include <array>

namespace ddprun {

std::span<const CommandName> command_names() {
  static constexpr std::array kTable = std::to_array<CommandName>({
      {"status", "[JOB]", "what a running job does: nodes, workers, generation, failures so far"},
      {"logs", "[-f] [-n N] [--rank N] [JOB]", "what its workers on this host have written last"},
      {"stop", "[--now] [--timeout S] [JOB]", "end it on all nodes, and wait until it has ended"},
      {"restart", "[JOB]", "begin all its workers anew; no restart is used up"},
      {"signal", "[--rank N] SIGNAL [JOB]", "send a signal to its workers on all nodes"},
      {"flight", "[--compare] [--last N] [--pid PID,... | JOB | FILE...]",
       "the last collectives of each of its ranks, where ranks differ, what is in progress"},
      {"completion", "bash|zsh", "print what completes ddprun's command line in that shell"},
      {"doctor", "[options] [program]",
       "look at this host, and at the way to the others, for what makes jobs hang or crawl"},
      {"man-page", "", "print the manual page, ddprun(1)"},
  });
  return kTable;
}

std::string_view meant_command(std::string_view word) {
  constexpr std::array<std::string_view, 4> kOfStatus{"list", "ps", "top", "ls"};
  return std::ranges::count(kOfStatus, word) > 0 ? "status" : "";
}

}  // namespace ddprun
