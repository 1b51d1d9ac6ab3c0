// Nvml: calls the NVIDIA driver's own library (NVML). The library comes with the driver and not
// with ddprun, so it is loaded when GPUs are to be counted, and never linked. One owner thread.
// A call may take seconds where the driver has to wake a GPU, and may never return where a GPU
// has failed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/machine/core/visible_devices.h"

namespace ddprun {

// GpuProcess: a process that computes on a GPU, and the memory of the GPU that it uses.
struct GpuProcess {
  int pid = 0;  // as this process sees it
  std::int64_t memory_bytes = 0;

  friend bool operator==(const GpuProcess&, const GpuProcess&) = default;
};

// GpuUse: how much a GPU is in use, by all programs. What the driver does not say has no value.
struct GpuUse {
  std::optional<int> percent = {};  // of the last moments in which a program ran on it
  std::optional<std::int64_t> memory_bytes = {};
  std::vector<GpuProcess> processes = {};

  friend bool operator==(const GpuUse&, const GpuUse&) = default;
};

class Nvml {
 public:
  // Loads the library. kNotFound: it does not exist. kSystem: the driver's error message.
  static Result<Nvml> open();

  // Returns the number of GPUs of this host, whatever CUDA_VISIBLE_DEVICES says. 0: the driver
  // does not say.
  int count() const;
  // Returns the same GPUs, in the order of the PCI bus. Fields that the driver does not know
  // stay empty.
  std::vector<PresentGpu> gpus() const;
  // Returns how much the same GPUs are in use, in the same order.
  std::vector<GpuUse> use() const;
  // Returns the version, such as "550.54.15". Empty: the driver does not say.
  std::string driver_version() const;
  // Returns the newest CUDA version that the driver supports: 13000 for 13.0. 0: the driver
  // does not say.
  int cuda_version() const;
  // Returns the number of GPUs without persistence mode. The driver initializes such a GPU
  // again after a time without users.
  int count_without_persistence() const;

 private:
  struct Library;
  explicit Nvml(std::shared_ptr<const Library> library) : library_(std::move(library)) {}

  std::shared_ptr<const Library> library_;
};

// Returns all GPUs that the driver shows to this process, in the order of the PCI bus. Empty
// without a driver. The driver's library is loaded for the call and unloaded again.
std::vector<PresentGpu> present_gpus();

}  // namespace ddprun
