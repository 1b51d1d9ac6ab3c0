// Reads CUDA_VISIBLE_DEVICES: which GPUs of a machine programs see, and which one each worker
// gets.
//
// The variable is a list of numbers, UUIDs, or beginnings of UUIDs. CUDA stops reading at the
// first invalid entry. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddprun {

// PresentGpu: a GPU of the machine. Its index is CUDA's number with
// CUDA_DEVICE_ORDER=PCI_BUS_ID.
struct PresentGpu {
  std::string uuid;    // "GPU-..."; empty: not known
  std::string bus_id;  // "0000:3b:00.0"
  std::string model;   // "NVIDIA H200"
};

struct VisibleGpu {
  std::string name;    // as CUDA_VISIBLE_DEVICES names it
  std::string bus_id;  // empty: not known, for example for a part of a GPU (MIG)
};

// Returns the GPUs that a program sees. visible: the variable; nullopt: it is not set, and all
// GPUs are visible.
std::vector<VisibleGpu> visible_gpus(const std::optional<std::string>& visible,
                                     const std::vector<PresentGpu>& present);

// Returns CUDA_VISIBLE_DEVICES for each of `workers` workers that should see only one GPU. The
// values are the entries of `visible`, or the numbers from 0 where it is not set. present: how
// many GPUs the machine has; 0: not known, for example because only the workers see them.
// kInvalidArgument: there are fewer GPUs than workers.
Result<std::vector<std::string>> devices_of(const std::optional<std::string>& visible, int workers,
                                            int present);

// Returns whether CUDA may number the GPUs in another order than `present`. If the models
// differ, CUDA numbers the fastest first, unless CUDA_DEVICE_ORDER (`order`) is PCI_BUS_ID.
bool may_be_numbered_otherwise(const std::string& order, const std::vector<PresentGpu>& present);

}  // namespace ddprun
