#include "launcher/machine/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "base/library_function.h"
#include "base/printed.h"

namespace ddprun {
namespace {

using Device = void*;

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

// nvmlUtilization_t: percent.
struct Utilization {
  unsigned gpu = 0;
  unsigned memory = 0;
};

// nvmlMemory_t: bytes.
struct Memory {
  unsigned long long total = 0;
  unsigned long long free = 0;
  unsigned long long used = 0;
};

// nvmlProcessInfo_t of nvmlDeviceGetComputeRunningProcesses_v3: bytes.
struct ProcessInfo {
  unsigned pid = 0;
  unsigned long long used = 0;  // all ones: not known
  unsigned gpu_instance = 0;
  unsigned compute_instance = 0;
};

using ProcessesOf = int (*)(Device, unsigned*, ProcessInfo*);

// Returns the processes that compute on the GPU. Empty: there are none, or the driver does not
// say. Those beyond 256 are left out, because the driver then says none.
std::vector<GpuProcess> processes_on(Device device, ProcessesOf list) {
  std::array<ProcessInfo, 256> infos;
  auto count = static_cast<unsigned>(infos.size());
  if (!list || list(device, &count, infos.data()) != 0) return {};
  std::vector<GpuProcess> processes;
  for (const ProcessInfo& info : std::span(infos).first(std::min<std::size_t>(count, 256))) {
    if (info.used > static_cast<unsigned long long>(std::numeric_limits<std::int64_t>::max())) {
      continue;
    }
    processes.push_back(
        {.pid = static_cast<int>(info.pid), .memory_bytes = static_cast<std::int64_t>(info.used)});
  }
  return processes;
}

}  // namespace

// Declares NVML's functions by itself, because most build machines have no nvml.h.
struct Nvml::Library {
  void* handle = nullptr;
  bool is_ready = false;

  Library() : handle(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {}
  ~Library() {
    if (const auto shut_down = function<int (*)()>("nvmlShutdown"); is_ready && shut_down)
      shut_down();
    if (handle) dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Returns null if the library does not have the function.
  template <class Function>
  Function function(const char* name) const {
    Function found = nullptr;
    if (handle) find_function(handle, name, found);
    return found;
  }

  // Returns null if the driver does not return the device.
  Device device(int index) const {
    const auto get = function<int (*)(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2");
    Device device = nullptr;
    return get && get(static_cast<unsigned>(index), &device) == 0 ? device : nullptr;
  }
};

Result<Nvml> Nvml::open() {
  const auto library = std::make_shared<Library>();
  const std::string doing = "open libnvidia-ml.so.1";
  if (!library->handle)
    return Error{.kind = ErrorKind::kNotFound, .doing = doing, .cause = dlerror()};
  const auto init = library->function<int (*)()>("nvmlInit_v2");
  const int status = init ? init() : -1;
  if (status != 0) {
    const auto words = library->function<const char* (*)(int)>("nvmlErrorString");
    return Error{.doing = doing, .cause = words ? words(status) : "not an NVML library"};
  }
  library->is_ready = true;
  return Nvml(library);
}

int Nvml::count() const {
  const auto get = library_->function<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
  unsigned count = 0;
  return get && get(&count) == 0 ? static_cast<int>(count) : 0;
}

std::string Nvml::driver_version() const {
  const auto get = library_->function<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
  std::array<char, 128> text{};
  return get && get(text.data(), text.size()) == 0 ? text.data() : "";
}

int Nvml::cuda_version() const {
  const auto get = library_->function<int (*)(int*)>("nvmlSystemGetCudaDriverVersion_v2");
  int version = 0;
  return get && get(&version) == 0 ? version : 0;
}

int Nvml::count_without_persistence() const {
  const auto mode_of = library_->function<int (*)(Device, int*)>("nvmlDeviceGetPersistenceMode");
  int off = 0;
  for (int i = 0, present = mode_of ? count() : 0; i < present; ++i) {
    const Device device = library_->device(i);
    int mode = 1;
    if (device && mode_of(device, &mode) == 0 && mode == 0) ++off;
  }
  return off;
}

std::vector<PresentGpu> Nvml::gpus() const {
  const auto pci_of = library_->function<int (*)(Device, PciInfo*)>("nvmlDeviceGetPciInfo_v3");
  const auto uuid_of = library_->function<int (*)(Device, char*, unsigned)>("nvmlDeviceGetUUID");
  const auto name_of = library_->function<int (*)(Device, char*, unsigned)>("nvmlDeviceGetName");
  std::vector<PresentGpu> gpus(static_cast<std::size_t>(count()));
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const Device device = library_->device(static_cast<int>(i));
    if (!device) continue;
    std::array<char, 96> text{};
    PciInfo pci;
    if (pci_of && pci_of(device, &pci) == 0) {
      gpus[i].bus_id = printed("%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
    }
    if (uuid_of && uuid_of(device, text.data(), text.size()) == 0) gpus[i].uuid = text.data();
    if (name_of && name_of(device, text.data(), text.size()) == 0) gpus[i].model = text.data();
  }
  return gpus;
}

std::vector<GpuUse> Nvml::use() const {
  const auto rates_of =
      library_->function<int (*)(Device, Utilization*)>("nvmlDeviceGetUtilizationRates");
  const auto memory_of = library_->function<int (*)(Device, Memory*)>("nvmlDeviceGetMemoryInfo");
  const auto list = library_->function<ProcessesOf>("nvmlDeviceGetComputeRunningProcesses_v3");
  std::vector<GpuUse> uses(static_cast<std::size_t>(count()));
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const Device device = library_->device(static_cast<int>(i));
    if (!device) continue;
    Utilization rates;
    if (rates_of && rates_of(device, &rates) == 0) uses[i].percent = static_cast<int>(rates.gpu);
    Memory memory;
    if (memory_of && memory_of(device, &memory) == 0) {
      uses[i].memory_bytes = static_cast<std::int64_t>(memory.used);
    }
    uses[i].processes = processes_on(device, list);
  }
  return uses;
}

std::vector<PresentGpu> present_gpus() {
  const Result<Nvml> nvml = Nvml::open();
  return nvml ? nvml->gpus() : std::vector<PresentGpu>();
}

}  // namespace ddprun
