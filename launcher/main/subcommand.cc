#include "launcher/main/subcommand.h"

#include <array>
#include <utility>

#include "launcher/control/commands.h"
#include "launcher/doctor/command.h"
#include "launcher/main/completion.h"
#include "launcher/main/help.h"

namespace ddprun {

RunCommand find_command(std::string_view name) {
  constexpr std::array kTable = std::to_array<std::pair<std::string_view, RunCommand>>({
      {"status", run_status},
      {"logs", run_logs},
      {"stop", run_stop},
      {"restart", run_restart},
      {"signal", run_signal},
      {"flight", run_flight},
      {"completion", run_completion},
      {"doctor", run_doctor},
      {"man-page", run_man_page},
  });
  for (const auto& [of, run] : kTable)
    if (of == name) return run;
  return nullptr;
}

}  // namespace ddprun
