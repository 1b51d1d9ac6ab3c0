// Facts about GPUs, their driver, LibTorch and NCCL, for `ddprun doctor`. Each wait has a
// deadline. A call that hangs in the driver is abandoned. Any thread.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/core/facts.h"

namespace ddprun {

GpuFacts look_at_gpus();

// Returns the directories in which LibTorch was found, in the order of the search. If `given` is
// not empty, looks only there. Otherwise looks in the active virtual or Conda environment, in the
// installation of PATH's Python, in .venv below the working directory, and on LD_LIBRARY_PATH.
std::vector<std::string> libtorch_directories(const std::string& given);

// Reads what the files of that LibTorch say about it. Runs no Python.
LibTorchFacts read_libtorch(const std::string& root);

// given: as above. Opens NCCL and asks it for its version.
NcclFacts look_at_nccl(const std::string& given);

// Returns the text of an NCCL version number: "2.28.9" for 22809.
std::string nccl_version_text(int version);

}  // namespace ddprun
