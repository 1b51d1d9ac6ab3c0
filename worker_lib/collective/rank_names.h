// Formats ranks for messages. Pure functions; thread-safe.
#pragma once

#include <span>
#include <string>

namespace ddprun {

// Returns "rank 3".
std::string name_rank(int rank);

// Returns "rank 3", "ranks 1, 4 and 7", "ranks 0-5 and 9".
std::string name_ranks(std::span<const int> ascending);

}  // namespace ddprun
