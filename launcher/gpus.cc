#include "launcher/gpus.h"

#include <dlfcn.h>

#include <array>
#include <cstdio>

#include "base/library_function.h"
#include "base/worker_env.h"

namespace ddprun {
namespace {

// nvmlPciInfo_t of nvml.h, whose layout is the library's binary interface.
struct PciInfo {
  std::array<char, 16> legacy_bus_id{};
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned device = 0;
  unsigned device_id = 0;
  unsigned subsystem_id = 0;
  std::array<char, 32> bus_id{};
};

using Device = void*;

struct Nvml {
  int (*init)() = nullptr;
  int (*shut_down)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned index, Device*) = nullptr;
  int (*pci_info)(Device, PciInfo*) = nullptr;
  int (*uuid)(Device, char* text, unsigned size) = nullptr;
  int (*name)(Device, char* text, unsigned size) = nullptr;
};

PresentGpu describe(const Nvml& nvml, unsigned index) {
  PresentGpu gpu;
  Device device = nullptr;
  if (nvml.device(index, &device) != 0) return gpu;
  std::array<char, 96> text{};
  PciInfo pci;
  if (nvml.pci_info(device, &pci) == 0) {
    std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
    gpu.bus_id = text.data();
  }
  if (nvml.uuid(device, text.data(), text.size()) == 0) gpu.uuid = text.data();
  if (nvml.name(device, text.data(), text.size()) == 0) gpu.model = text.data();
  return gpu;
}

}  // namespace

std::vector<PresentGpu> present_gpus() {
  std::vector<PresentGpu> gpus;
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return gpus;
  Nvml nvml;
  const bool complete = find_function(library, "nvmlInit_v2", nvml.init) &&
                        find_function(library, "nvmlShutdown", nvml.shut_down) &&
                        find_function(library, "nvmlDeviceGetCount_v2", nvml.count) &&
                        find_function(library, "nvmlDeviceGetHandleByIndex_v2", nvml.device) &&
                        find_function(library, "nvmlDeviceGetPciInfo_v3", nvml.pci_info) &&
                        find_function(library, "nvmlDeviceGetUUID", nvml.uuid) &&
                        find_function(library, "nvmlDeviceGetName", nvml.name);
  if (complete && nvml.init() == 0) {
    unsigned count = 0;
    if (nvml.count(&count) != 0) count = 0;
    for (unsigned i = 0; i < count; ++i) gpus.push_back(describe(nvml, i));
    nvml.shut_down();
  }
  dlclose(library);
  return gpus;
}

std::vector<VisibleGpu> visible_gpus_here() {
  return visible_gpus(environment_variable("CUDA_VISIBLE_DEVICES"), present_gpus());
}

}  // namespace ddprun
