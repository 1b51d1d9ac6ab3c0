// Relay: the route of a broadcast from node to node. Pure functions; thread-safe.
//
// Nodes are counted from the root's node, which is 0.
//
//   chain   0 -> 1 -> 2 -> ...            every link carries every chunk once, one after the other
//   tree    0 -> 4, 2, 1   2 -> 3   ...   (binomial) every node sends to up to log2(nodes) others
//
// A step carries a chunk over one link. The chain needs chunks + nodes - 2 steps for `chunks`
// chunks. The tree needs chunks * ceil(log2(nodes)): its root is busy with each chunk for
// ceil(log2(nodes)) steps.
#pragma once

#include <cstddef>
#include <vector>

namespace ddprun {

struct Relay {
  int from = -1;        // -1: this node is the root's
  std::vector<int> to;  // in the order in which they are served

  friend bool operator==(const Relay&, const Relay&) = default;
};

Relay relay_in_chain(int node, int nodes);
Relay relay_in_tree(int node, int nodes);

// Returns whether the tree has fewer steps.
bool tree_is_shorter(std::size_t chunks, int nodes);

}  // namespace ddprun
