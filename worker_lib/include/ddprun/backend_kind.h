// BackendKind: a backend of the program's own, for InitOptions::more_backends.
//
//   init({.backend = "cpu:cpu,xpu:mine", .more_backends = {{.name = "mine",
//                                                           .devices = {torch::kXPU},
//                                                           .make = make_mine}}});
//
// Backend (backend.h) is what it must implement.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/backend.h"
#include "ddprun/store.h"

namespace ddprun {

// What a rank of one group has to make its backend of.
struct BackendStart {
  int rank = 0;
  int size = 1;
  torch::Device device{torch::kCPU};  // of the Context
  // Of the world: where the ranks of the group meet, under keys that begin with `name`, which is the
  // same on all of them and never used again. Null in a group of one. To be used during the call only.
  Store* store = nullptr;
  std::string name;
  std::string title;  // behind what was done, in errors: " in group tp"; empty: the world
  std::chrono::nanoseconds timeout{};  // of forming the group
  // What split_off() of the group gave that this one is a part of, where this backend is the one of the
  // Context's device.
  std::shared_ptr<void> seed = {};
};

struct BackendKind {
  std::string name;                        // in InitOptions::backend; not "cpu" or "nccl"
  std::vector<torch::DeviceType> devices;  // whose tensors it carries
  // Called by every rank of a group that is formed, on the thread that forms it; may wait for the others.
  // What it throws ends the forming of the group; never returns null.
  std::function<std::unique_ptr<Backend>(const BackendStart&)> make;
};

}  // namespace ddprun
