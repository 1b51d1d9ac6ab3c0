// GPUs, their driver, LibTorch and NCCL: facts for `ddprun doctor`. Each wait has a deadline; what
// hangs in the driver is left to itself. Any thread.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/core/facts.h"

namespace ddprun {

GpuFacts look_at_gpus();

// Where LibTorch may be, in the order in which it is looked for: `given` alone where it is not
// empty, else beside the active virtual environment's Python, the one of PATH, .venv here, and on
// LD_LIBRARY_PATH. Directories that are there.
std::vector<std::string> libtorch_directories(const std::string& given);

// What the files of that LibTorch say of it; no Python is run.
LibTorchFacts read_libtorch(const std::string& root);

// given: as above. NCCL is opened and asked for its version.
NcclFacts look_at_nccl(const std::string& given);

// "2.28.9" of 22809, as NCCL counts.
std::string nccl_version_text(int version);

}  // namespace ddprun
