// Divides the pairs of nodes into rounds in which each node has at most one partner. So no link is
// measured while its node has other traffic. This is the circle method of round-robin tournaments:
// one node stays, the others move on by one place in each round.
//
// Pure; any thread.
#pragma once

#include <utility>
#include <vector>

namespace ddprun {

// Returns the rounds: nodes - 1 of them, or `nodes` if that is odd. Each pair of nodes, the smaller
// one first, is in one round.
std::vector<std::vector<std::pair<int, int>>> pair_rounds(int nodes);

}  // namespace ddprun
