#include "launcher/options/core/command_names.h"

#include <algorithm>
#include <array>

namespace ddprun {

std::span<const CommandName> command_names() {
  static constexpr std::array kTable = std::to_array<CommandName>({
      {"status", "[JOB]",
       "show the state of a running job: nodes, workers, generation, failures so far"},
      {"top", "[--once] [JOB]",
       "show the ranks of a job live in the terminal: which are slow, behind, stopped or awaited"},
      {"dashboard", "[--open] [JOB]",
       "serve the page of a job for a browser, on a port of this host: ranks, failures, events, "
       "buttons"},
      {"logs", "[-f] [-n N] [--rank N] [JOB]",
       "show the last output of a job's workers on this host"},
      {"stop", "[--now] [--timeout S] [JOB]",
       "end a job on all nodes, and wait until it has ended"},
      {"restart", "[JOB]", "start all workers of a job again; uses no restart"},
      {"signal", "[--rank N] SIGNAL [JOB]", "send a signal to a job's workers on all nodes"},
      {"flight", "[--compare] [--last N] [--pid PID,... | JOB | FILE...]",
       "show the last collectives of a job's ranks, what is in progress, and where ranks differ"},
      {"stacks", "[--rank N] [JOB]",
       "show where each rank of a job is in its program; ranks at the same place stand together"},
      {"bench", "[options] [-- BENCH OPTIONS]",
       "measure memory, links and all_reduce of the nodes that the options of a job give, and name "
       "the odd ones"},
      {"trace", "-o FILE [JOB | FILE...]",
       "write one timeline of all ranks of a job and of its events, for ui.perfetto.dev"},
      {"completion", "bash|zsh", "print the completion script for that shell"},
      {"doctor", "[options] [program]",
       "check this host, and the network path to others, for what makes jobs hang or run slowly"},
      {"man-page", "", "print the manual page, ddprun(1)"},
  });
  return kTable;
}

std::string_view meant_command(std::string_view word) {
  constexpr std::array<std::string_view, 3> kOfStatus{"list", "ps", "ls"};
  return std::ranges::count(kOfStatus, word) > 0 ? "status" : "";
}

}  // namespace ddprun
