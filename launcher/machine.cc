#include "launcher/machine.h"

#include "base/usable_cpus.h"
#include "launcher/nvml.h"

namespace ddprun {
namespace {

// GPUs that programs started from here would see. 0 without a driver.
int count_gpus() {
  const Result<Nvml> nvml = Nvml::open();
  return nvml ? visible_gpus(nvml->count()) : 0;
}

int count_cpus() { return static_cast<int>(usable_cpus().size()); }

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
               .cause = "'gpu': no GPU is visible here; give a number, cpu or auto"};
}

}  // namespace ddprun
