// BackendKind: a backend of the program's own. InitOptions::more_backends lists it. init() and
// later ProcessGroup::split() then make one for each group that uses it.
//
//   init({.backend = "cpu:cpu,xpu:mine", .more_backends = {{.name = "mine",
//                                                           .devices = {torch::kXPU},
//                                                           .make = make_mine}}});
//
// The object that make() returns implements Backend (backend.h).
#pragma once

#include <torch/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/backend.h"
#include "ddprun/store.h"

namespace ddprun {

struct BackendStart;

struct BackendKind {
  std::string name;                        // as in InitOptions::backend; "cpu" and "nccl" are taken
  std::vector<torch::DeviceType> devices;  // whose tensors it carries
  // Every rank calls it when a group is formed, on the thread that forms the group. It may wait
  // for the other ranks. An exception ends the forming of the group. Never returns null.
  std::function<std::unique_ptr<Backend>(const BackendStart&)> make;
};

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
  // The result of split_off() of the parent's backend, for a group made by split(). Null otherwise.
  std::shared_ptr<void> seed = {};
};

}  // namespace ddprun
