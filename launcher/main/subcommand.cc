#include "launcher/main/subcommand.h"

#include "launcher/control/commands.h"
#include "launcher/control/options.h"
#include "launcher/doctor/command.h"
#include "launcher/main/bench.h"
#include "launcher/main/completion.h"
#include "launcher/main/help.h"

namespace ddprun {

RunCommand find_command(std::string_view name) {
  if (const auto what = parse_enum(kUserRequestWords, name)) {
    return
        [what](const std::vector<std::string>& arguments) { return run_control(*what, arguments); };
  }
  if (name == "bench") return run_bench;
  if (name == "trace") {
    return [](const std::vector<std::string>& arguments) { return run_control(kTrace, arguments); };
  }
  if (name == "completion") return run_completion;
  if (name == "doctor") return run_doctor;
  if (name == "man-page") return run_man_page;
  return nullptr;
}

}  // namespace ddprun
