#include "launcher/machine/machine.h"

#include <string>

#include "base/small_file.h"
#include "base/usable_cpus.h"
#include "base/worker_env.h"
#include "launcher/machine/core/cpu_set.h"
#include "launcher/machine/nvml.h"

namespace ddprun {
namespace {

int count_gpus() {
  const auto visible = environment_variable("CUDA_VISIBLE_DEVICES");
  return static_cast<int>(visible_gpus(visible, present_gpus()).size());
}

int count_cpus() { return static_cast<int>(usable_cpus().size()); }

// Returns a file of /sys/devices/system/cpu, without its newline. Empty: it cannot be read.
std::string kernel_says(const std::string& name) {
  return first_line_of("/sys/devices/system/cpu/" + name);
}

}  // namespace

Result<int> count_slots(const SlotCount& wanted) {
  switch (wanted.kind) {
    case SlotCount::Kind::kNumber: return wanted.number;
    case SlotCount::Kind::kCpus: return count_cpus();
    case SlotCount::Kind::kAuto: {
      const int gpus = count_gpus();
      return gpus > 0 ? gpus : count_cpus();
    }
    case SlotCount::Kind::kGpus: break;
  }
  const int gpus = count_gpus();
  if (gpus > 0) return gpus;
  return Error{.kind = ErrorKind::kUnsupported,
               .doing = "--nproc-per-node",
               .cause = "invalid value 'gpu' (no GPU is visible here; give a number, cpu or auto)"};
}

int count_cores() {
  const std::vector<int> usable = usable_cpus();
  // Reads one file instead of one for each core.
  if (kernel_says("smt/active") == "0") return static_cast<int>(usable.size());
  CpuSet left(usable.begin(), usable.end());
  int cores = 0;
  while (!left.empty()) {
    const int cpu = *left.begin();
    const std::string siblings =
        kernel_says("cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    left.erase(cpu);
    for (const int sibling : parse_cpu_list(siblings).value_or(CpuSet())) left.erase(sibling);
    ++cores;
  }
  return cores;
}

}  // namespace ddprun
