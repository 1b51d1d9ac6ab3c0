// Draws a machine and the workers on it as text, for --show-binding. Pure; any thread.
#pragma once

#include <string>

#include "launcher/machine/core/placement.h"

namespace ddprun {

struct BindingDrawing {
  std::string host;
  Machine machine;
  Placement placement;
  std::string threads;  // inherited OMP_NUM_THREADS; empty: each worker has its seat's
};

// Returns lines, each with its line end:
// - one line that describes the machine;
// - its packages and NUMA nodes, with a mark for each core that shows which local rank runs
//   there;
// - one line per local rank;
// - remarks.
std::string draw(const BindingDrawing& drawing);

}  // namespace ddprun
