// order_nodes(): decides which node gets which rank. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// Returns whether `left` comes before `right` when their numbers are compared by value: node2
// before node10. Equal numbers with different padding compare by their text, so that the order
// is total.
bool natural_less(std::string_view left, std::string_view right);

struct NodeCandidate {
  std::string host;
  std::string agent_id;              // breaks ties
  std::optional<int> wanted_rank;    // --node-rank
  std::optional<int> previous_rank;  // in the last generation, if the node was in it
  int failures = 0;                  // more than 0: others are preferred, as it failed too often
};

// Chooses at most `max_nodes` of the candidates and gives them the ranks 0..n-1. Element r of
// the result is the index of the candidate that gets rank r.
//
// Candidates with failures are chosen only if there are not enough others. Those with the
// fewest failures come first, then those of the last generation, then by name. The chosen ones
// get ranks as follows.
//
// A candidate of the last generation keeps its rank if that is below n. Others fill the free ranks,
// lowest first. First come candidates that ask for that rank, then newcomers by natural order of
// host names. Last come the highest-numbered candidates of the last generation. A candidate without
// a rank is a spare.
std::vector<std::size_t> order_nodes(const std::vector<NodeCandidate>& candidates, int max_nodes);

}  // namespace ddprun
