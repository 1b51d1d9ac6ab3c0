// Relay: the way of a broadcast from node to node. Pure functions; any thread.
//
// Nodes are counted from the root's, which is 0.
//
//   chain   0 -> 1 -> 2 -> ...            every link carries every chunk once, one behind the other
//   tree    0 -> 4, 2, 1   2 -> 3   ...   (binomial) every node sends to up to log2(nodes) others
//
// A step carries a chunk over one link. `chunks` of them need chunks + nodes - 2 steps along the chain
// and chunks * ceil(log2(nodes)) down the tree, whose root is busy with each chunk for so long.
#pragma once

#include <cstddef>
#include <vector>

namespace ddprun {

struct Relay {
  int from = -1;        // -1: this is the root
  std::vector<int> to;  // in the order in which they are served

  friend bool operator==(const Relay&, const Relay&) = default;
};

Relay relay_in_chain(int node, int nodes);
Relay relay_in_tree(int node, int nodes);

// Whether the tree has fewer steps.
bool tree_is_shorter(std::size_t chunks, int nodes);

}  // namespace ddprun
