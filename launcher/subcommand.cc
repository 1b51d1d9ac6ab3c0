#include "launcher/subcommand.h"

#include <algorithm>
#include <array>

#include "launcher/completion.h"
#include "launcher/doctor_command.h"
#include "launcher/help.h"

namespace ddprun {

std::span<const Subcommand> subcommands() {
  static constexpr std::array kTable = std::to_array<Subcommand>({
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

}  // namespace ddprun
