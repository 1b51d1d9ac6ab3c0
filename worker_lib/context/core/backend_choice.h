// choose_backends(): chooses the device of a rank, and the backend that carries the tensors of
// each type of device. As in torch.distributed:
//
//   "nccl"               one backend, with the devices that it supports
//   "cpu:cpu,cuda:nccl"  one for each type of device
//
// Default: cpu for tensors on the CPU and, if there is a GPU and the program links nccl, nccl
// for tensors on it. Types of devices are written as in LibTorch. A pure function; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace ddprun {

struct DeviceChoice {
  std::string type;          // "cpu", "cuda"
  std::optional<int> index;  // which of them

  bool operator==(const DeviceChoice&) const = default;
};

// A backend that the program implements.
struct CustomBackend {
  std::string name;
  std::vector<std::string> device_types;  // that it supports, this rank's first
};

struct BackendRequest {
  std::optional<DeviceChoice> device;
  std::optional<std::string> backend;
};

struct BackendEnvironment {
  int gpus = 0;
  bool has_nccl = false;  // the program links it
  LocalRank local_rank{0};
  std::vector<CustomBackend> custom_backends;
};

struct BackendChoice {
  DeviceChoice device;
  // One for each type of device.
  struct Server {
    std::string device_type;
    std::string backend;

    bool operator==(const Server&) const = default;
  };
  std::vector<Server> servers;

  // Returns the backend for the device's own type.
  const std::string& main_backend() const;
};

// Chooses the backends. The messages of kInvalidArgument and kUnsupported name valid choices.
Result<BackendChoice> choose_backends(const BackendRequest& request,
                                      const BackendEnvironment& environment);

}  // namespace ddprun
