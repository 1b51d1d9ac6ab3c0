#include "launcher/cluster/slurm_command.h"

#include <unistd.h>

#include <string_view>

namespace ddprun {

std::vector<std::string> slurm_command(const std::vector<std::string>& command) {
  std::vector<std::string> whole;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool selects = name.starts_with("SQUEUE_") || name.starts_with("SCANCEL_") ||
                         name.starts_with("SCONTROL_") || name == "SLURM_CLUSTERS";
    if (!selects) continue;
    if (whole.empty()) whole.emplace_back("env");
    whole.emplace_back("-u");
    whole.emplace_back(name);
  }
  whole.insert(whole.end(), command.begin(), command.end());
  return whole;
}

}  // namespace ddprun
