#include "launcher/main/subcommand.h"

#include "launcher/control/commands.h"
#include "launcher/dashboard/command.h"
#include "launcher/doctor/command.h"
#include "launcher/main/bench.h"
#include "launcher/main/completion.h"
#include "launcher/main/help.h"
#include "launcher/top/command.h"

namespace ddprun {

RunCommand find_command(std::string_view name) {
  if (const auto command = parse_enum(kControlCommandWords, name)) {
    if (command == ControlCommand::kTop) return run_top;
    if (command == ControlCommand::kDashboard) return run_dashboard;
    return [command = *command](const std::vector<std::string>& arguments) {
      return run_control(command, arguments);
    };
  }
  if (name == "bench") return run_bench;
  if (name == "completion") return run_completion;
  if (name == "doctor") return run_doctor;
  if (name == "man-page") return run_man_page;
  return nullptr;
}

}  // namespace ddprun
