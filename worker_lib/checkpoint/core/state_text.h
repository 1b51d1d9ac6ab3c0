// Prints the contents of a file of torch.save for people: one line for each value; values in a
// dict or a list are indented.
//
//   model: dict of 2
//     0.weight: float32 [32, 6], 768 bytes
//     0.bias: float32 [32], 128 bytes, a view of 0.weight's storage
//   epoch: 3
//
// A pure function; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "worker_lib/serialization/core/pickle_value.h"

namespace ddprun {

// most: the number of entries of one dict or list that are shown; 0: all.
std::vector<std::string> to_lines(const PickleTree& tree, std::size_t most = 0);

}  // namespace ddprun
