#include "launcher/process/slurm_step.h"

#include <unistd.h>

#include <cstdlib>

#include "base/process_stat.h"
#include "base/small_file.h"

namespace ddprun {

pid_t slurm_manager() {
  if (!std::getenv("SLURM_STEP_ID")) return 0;
  constexpr int kFarthest = 16;  // parents to look at: a few shells and wrappers may lie between
  pid_t one = getppid();
  for (int i = 0; i < kFarthest && one > 1; ++i) {
    if (first_line_of("/proc/" + std::to_string(one) + "/comm") == "slurmstepd") return one;
    const std::optional<ProcessStat> stat = process_stat(one);
    if (!stat) return 0;
    one = stat->parent;
  }
  return 0;
}

std::string title_of_slurm_manager() {
  const pid_t manager = slurm_manager();
  return manager == 0 ? "" : first_line_of("/proc/" + std::to_string(manager) + "/cmdline");
}

bool signals_whole_step(std::string_view cgroups) { return cgroups.find("/step_") == cgroups.npos; }

}  // namespace ddprun
