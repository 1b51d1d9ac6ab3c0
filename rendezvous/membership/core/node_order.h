// Which node gets which rank. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// Order of names as people count: node2 before node10. Equal numbers with different padding compare
// by their text, so that the order is total.
bool natural_less(std::string_view left, std::string_view right);

struct NodeCandidate {
  std::string host;
  std::string agent_id;              // breaks ties
  std::optional<int> wanted_rank;    // --node-rank
  std::optional<int> previous_rank;  // in the last generation, if it was in it
  int failures = 0;                  // more than 0: it failed so often that others are preferred
};

// Chooses at most `max_nodes` of the candidates and gives them the ranks 0..n-1: element r of the
// answer is the index of the candidate that gets rank r.
//
// Candidates with failures are chosen only where there are not enough others, those with the
// fewest first, then those of the last generation, then by name. For all who can be chosen:
//
// A candidate of the last generation keeps its rank when that is below n. Others fill the holes,
// lowest first: those who ask for that rank, then newcomers by natural order of host names, then
// the highest-numbered candidates of the last generation. Who finds no place is a spare.
std::vector<std::size_t> order_nodes(const std::vector<NodeCandidate>& candidates, int max_nodes);

}  // namespace ddprun
