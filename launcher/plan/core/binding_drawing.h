// --show-binding: a machine and who runs where on it, drawn with characters. Pure; any thread.
#pragma once

#include <string>

#include "launcher/machine/core/placement.h"

namespace ddprun {

struct BindingDrawing {
  std::string host;
  Machine machine;
  Placement placement;
  std::string threads;  // OMP_NUM_THREADS as it is inherited; empty: each worker has its seat's
};

// Lines, each with its end: the machine in a line; its packages and NUMA nodes with a place for each
// core, which shows the local rank that runs there; a line for each local rank; remarks.
std::string draw(const BindingDrawing& drawing);

}  // namespace ddprun
