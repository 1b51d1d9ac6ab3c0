// Writes node layouts as letters.
#pragma once

#include <string>
#include <vector>

#include "worker_lib/cpu_shm/core/node_layout.h"

namespace ddprun {

// Returns the layout of "aab": ranks 0 and 1 on one node, rank 2 on another.
inline NodeLayout layout_of(const std::string& letters) {
  std::vector<std::string> nodes;
  for (const char letter : letters) nodes.emplace_back(1, letter);
  return make_node_layout(nodes);
}

}  // namespace ddprun
