#include "launcher/main/subcommand.h"

#include "launcher/control/commands.h"
#include "launcher/dashboard/command.h"
#include "launcher/doctor/command.h"
#include "launcher/main/bench.h"
#include "launcher/main/completion.h"
#include "launcher/main/help.h"
#include "launcher/top/command.h"
#include "rendezvous/protocol/core/user_request.h"

namespace ddprun {

RunCommand find_command(std::string_view name) {
  if (parse_enum(kUserRequestWords, name) || name == "trace") {
    return [command = std::string(name)](const std::vector<std::string>& arguments) {
      return run_control(command, arguments);
    };
  }
  if (name == "bench") return run_bench;
  if (name == "dashboard") return run_dashboard;
  if (name == "top") return run_top;
  if (name == "completion") return run_completion;
  if (name == "doctor") return run_doctor;
  if (name == "man-page") return run_man_page;
  return nullptr;
}

}  // namespace ddprun
