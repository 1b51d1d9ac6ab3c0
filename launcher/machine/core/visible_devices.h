// CUDA_VISIBLE_DEVICES: which GPUs of a machine programs see, and which one each worker has.
//
// The variable is a list of numbers and UUIDs, or beginnings of UUIDs; CUDA stops reading at the
// first entry that it cannot mean. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddprun {

// A GPU that the machine has, by CUDA's number with CUDA_DEVICE_ORDER=PCI_BUS_ID.
struct PresentGpu {
  std::string uuid;    // "GPU-..."; empty: not known
  std::string bus_id;  // "0000:3b:00.0"
  std::string model;   // "NVIDIA H200"
};

struct VisibleGpu {
  std::string name;    // how CUDA_VISIBLE_DEVICES names it
  std::string bus_id;  // empty: not known, as of a part of a GPU (MIG)
};

// visible: the variable; nullopt: it is not set, and all are seen.
std::vector<VisibleGpu> visible_gpus(const std::optional<std::string>& visible,
                                     const std::vector<PresentGpu>& present);

// CUDA_VISIBLE_DEVICES of each of so many workers who are to see one GPU alone: the entries of the
// list, or, where there is none, the numbers from 0. present: how many GPUs the machine has; 0: that
// is not known, or only those who start the workers do not see them. kInvalidArgument: there are
// fewer of them.
Result<std::vector<std::string>> devices_of(const std::optional<std::string>& visible, int workers,
                                            int present);

// Of different models CUDA numbers the fastest first, unless CUDA_DEVICE_ORDER (order) is
// PCI_BUS_ID. Whether that may differ from the order of `present`.
bool may_be_numbered_otherwise(const std::string& order, const std::vector<PresentGpu>& present);

}  // namespace ddprun
