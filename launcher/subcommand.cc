#include "launcher/subcommand.h"

#include <array>
#include <utility>

#include "launcher/completion.h"
#include "launcher/control_commands.h"
#include "launcher/doctor_command.h"
#include "launcher/help.h"

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
