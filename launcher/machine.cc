#include "launcher/machine.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>

#include "base/usable_cpus.h"

namespace ddprun {
namespace {

// NVML comes with the driver, not with us: it is looked for only when GPUs are to be counted.
int count_nvml_devices() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return 0;
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto shut_down = reinterpret_cast<int (*)()>(dlsym(library, "nvmlShutdown"));
  const auto get_count =
      reinterpret_cast<int (*)(unsigned*)>(dlsym(library, "nvmlDeviceGetCount_v2"));
  unsigned count = 0;
  if (init && shut_down && get_count && init() == 0) {
    if (get_count(&count) != 0) count = 0;
    shut_down();
  }
  dlclose(library);
  return static_cast<int>(count);
}

// GPUs that programs started from here would see: NVML's, as far as CUDA_VISIBLE_DEVICES lets them.
// 0 without a driver.
int count_gpus() {
  const int present = count_nvml_devices();
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!visible || present == 0) return present;
  int count = 0;
  std::istringstream list(visible);
  for (std::string device; std::getline(list, device, ',');) {
    if (device.empty() || device.starts_with('-'))
      break;  // CUDA, too, stops at the first invalid one
    ++count;
  }
  return std::min(count, present);
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
