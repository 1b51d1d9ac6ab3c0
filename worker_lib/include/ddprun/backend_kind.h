// BackendKind: describes a backend that the program implements, for InitOptions::more_backends.
//
//   init({.backend = "cpu:cpu,xpu:mine", .more_backends = {{.name = "mine",
//                                                           .devices = {torch::kXPU},
//                                                           .make = make_mine}}});
//
// The backend implements Backend (backend.h).
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/backend.h"
#include "ddprun/store.h"

namespace ddprun {

// The values from which a rank of one group makes its backend.
struct BackendStart {
  int rank = 0;
  int size = 1;
  torch::Device device{torch::kCPU};  // the Context's
  // The world's store. The ranks of the group find each other there under keys that begin with
  // `name`. The name is the same on all of them and is never used again. Null in a group of one
  // rank. Use it only during the call.
  Store* store = nullptr;
  std::string name;
  // Errors append it to what was done: " in group tp". Empty: the world.
  std::string title;
  std::chrono::nanoseconds timeout{};  // of forming the group
  // The seed that split_off() of the parent group gave, if this backend serves the Context's
  // device.
  std::shared_ptr<void> seed = {};
};

struct BackendKind {
  std::string name;                        // as in InitOptions::backend; not "cpu" or "nccl"
  std::vector<torch::DeviceType> devices;  // whose tensors it carries
  // Every rank calls it when a group is formed, on the thread that forms the group. It may wait
  // for the other ranks. An exception ends the forming of the group. Never returns null.
  std::function<std::unique_ptr<Backend>(const BackendStart&)> make;
};

}  // namespace ddprun
