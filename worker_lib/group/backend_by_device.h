// backend_by_device(): several backends in one group, each for the tensors of some types of
// devices. Calls of different backends do not wait for each other. A barrier is the main backend's.
//
// Owned by a ProcessGroup, which has checked that the tensors of a call are on one device that
// the group serves. Threads: as Backend.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddprun/backend.h"

namespace ddprun {

struct BackendPart {
  std::vector<torch::DeviceType> devices;
  std::unique_ptr<Backend> backend;
};

// Makes the backend. The first part is the main one. name: "cpu:cpu,cuda:nccl".
std::unique_ptr<Backend> backend_by_device(std::string name, std::vector<BackendPart> parts);

}  // namespace ddprun
