// Makes a checkpoint of another tool's weights. Free functions; failures throw Failed.
#pragma once

#include <cstdint>
#include <string>

#include "worker_lib/checkpoint_tool/weights.h"

namespace ddprun {

// Writes the weights as the first checkpoint of a directory. The directory has none, and is made if
// it is missing. from: what they are, for the restored training. Prints a line.
void import_into(const std::string& directory, std::int64_t step, const Weights& weights,
                 const std::string& from);

}  // namespace ddprun
