#include "launcher/subcommand.h"

#include <algorithm>
#include <array>

#include "launcher/completion.h"
#include "launcher/control_commands.h"
#include "launcher/doctor_command.h"
#include "launcher/help.h"

namespace ddprun {

std::span<const Subcommand> subcommands() {
  static constexpr std::array kTable = std::to_array<Subcommand>({
      {"status", "[JOB]", "what a running job does: nodes, workers, generation, failures so far",
       run_status},
      {"logs", "[-f] [-n N] [--rank N] [JOB]", "what its workers on this host have written last",
       run_logs},
      {"stop", "[--now] [--timeout S] [JOB]", "end it on all nodes, and wait until it has ended",
       run_stop},
      {"restart", "[JOB]", "begin all its workers anew; no restart is used up", run_restart},
      {"signal", "[--rank N] SIGNAL [JOB]", "send a signal to its workers on all nodes",
       run_signal},
      {"flight", "[--compare] [--last N] [--pid PID,... | JOB | FILE...]",
       "the last collectives of each of its ranks, where ranks differ, what is in progress",
       run_flight},
      {"completion", "bash|zsh", "print what completes ddprun's command line in that shell",
       run_completion},
      {"doctor", "[options] [program]",
       "look at this host, and at the way to the others, for what makes jobs hang or crawl",
       run_doctor},
      {"man-page", "", "print the manual page, ddprun(1)", run_man_page},
  });
  return kTable;
}

const Subcommand* find_subcommand(std::string_view name) {
  const std::span<const Subcommand> table = subcommands();
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const Subcommand& one) { return one.name == name; });
  return found == table.end() ? nullptr : &*found;
}

const Subcommand* meant_subcommand(std::string_view word) {
  constexpr std::array<std::string_view, 4> kOfStatus{"list", "ps", "top", "ls"};
  return std::ranges::count(kOfStatus, word) > 0 ? find_subcommand("status") : nullptr;
}

}  // namespace ddprun
