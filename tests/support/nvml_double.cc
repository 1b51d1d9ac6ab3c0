// A GPU driver for tests on machines without a GPU. It has the part of NVML that ddprun calls.
// It is loaded as libnvidia-ml.so.1 from LD_LIBRARY_PATH.
//
// DDPRUN_TEST_GPUS names the GPUs by their PCI bus, such as "1b,9d", in that order. Their UUIDs
// are GPU-<bus>. A GPU is in use for as many percent, and has as many GiB of memory in use, as the
// number of its bus. DDPRUN_TEST_GPU_PROCESSES names a file with the processes that compute on each
// GPU. Each uses one byte less for each of its pid than the GPU has in use. If
// DDPRUN_TEST_GPU_HANGS is set, asking for the use never returns.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::vector<unsigned> buses() {
  std::vector<unsigned> found;
  const char* named = std::getenv("DDPRUN_TEST_GPUS");
  std::istringstream list(named ? named : "");
  for (std::string bus; std::getline(list, bus, ',');) {
    found.push_back(static_cast<unsigned>(std::stoul(bus, nullptr, 16)));
  }
  return found;
}

unsigned bus_of(void* device) {
  return static_cast<unsigned>(reinterpret_cast<std::size_t>(device) - 1);
}

// PciInfo: same layout as the type in nvml.h.
struct PciInfo {
  std::array<char, 16> legacy_bus_id;
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_id;
  unsigned subsystem_id;
  std::array<char, 32> bus_id;
};

// ProcessInfo: same layout as nvmlProcessInfo_t.
struct ProcessInfo {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance;
  unsigned compute_instance;
};

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(buses().size());
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(std::size_t{buses().at(index)} + 1);
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
  std::memset(info, 0, sizeof *info);
  info->bus = bus_of(device);
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  std::snprintf(text, size, "GPU-%02x", bus_of(device));
  return 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned size) {
  std::snprintf(text, size, "NVIDIA H200");
  return 0;
}

int nvmlDeviceGetUtilizationRates(void* device, unsigned* rates) {
  while (std::getenv("DDPRUN_TEST_GPU_HANGS")) pause();
  rates[0] = bus_of(device);
  rates[1] = 0;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  memory[2] = static_cast<unsigned long long>(bus_of(device)) << 30;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, ProcessInfo* infos) {
  const char* file = std::getenv("DDPRUN_TEST_GPU_PROCESSES");
  std::ifstream list(file ? file : "");
  unsigned found = 0;
  for (unsigned pid = 0; found < *count && list >> pid; ++found) {
    infos[found] = {pid, (static_cast<unsigned long long>(bus_of(device)) << 30) - pid, 0, 0};
  }
  *count = found;
  return 0;
}

}  // extern "C"
