// choose_backends(): which device a rank works on, and which backend carries the tensors of which
// type of device. As torch.distributed has it:
//
//   "nccl"               one backend, with the devices that it is for
//   "cpu:cpu,cuda:nccl"  one for each type of device
//
// Without a word of the program: cpu for tensors on the cpu and, where there is a GPU and the
// program can, nccl for tensors on it. Types of devices are written as LibTorch writes them. A pure
// function; any thread.
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

// A backend of the program's own.
struct ForeignBackend {
  std::string name;
  std::vector<std::string> device_types;  // that it is for, the one of this rank first
};

struct BackendRequest {
  std::optional<DeviceChoice> device;
  std::optional<std::string> backend;
};

struct BackendEnvironment {
  int gpus = 0;
  bool has_nccl = false;  // the program links it
  LocalRank local_rank{0};
  std::vector<ForeignBackend> foreign;
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

  // Of the device's own type.
  const std::string& main_backend() const;
};

// kInvalidArgument and kUnsupported say what would be right.
Result<BackendChoice> choose_backends(const BackendRequest& wish,
                                      const BackendEnvironment& surroundings);

}  // namespace ddprun
