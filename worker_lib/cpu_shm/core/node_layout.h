// NodeLayout: which ranks share a node, and which ranks communicate across nodes.
//
// A pure value; thread-safe. Every rank computes it from the same list and gets the same result,
// so the ranks need not agree on it.
//
// A *lane* is a column of ranks, one of each node, that carries a share of the traffic between
// nodes. Lane w has the local index w of every node. There are as many lanes as the smallest node
// has ranks. A *position* is a rank's place in the order (lane, node, local index). A rank whose
// local index is beyond the lanes belongs to lane (index mod lanes). So the blocks that one lane
// carries to one node have adjacent positions.
//
//   nodes {0,1,2} {3,4}: lanes 2     lane 0: ranks 0 2 | 3      lane 1: ranks 1 | 4
//                                    positions 0 1   2                    3   4
#pragma once

#include <span>
#include <string>
#include <vector>

#include "worker_lib/collective/core/range.h"

namespace ddprun {

struct NodeLayout {
  std::vector<std::vector<int>> nodes;  // ranks of each node, ascending; nodes by their lowest rank
  std::vector<int> node_of;             // by rank
  std::vector<int> local_of;            // by rank: its local index
  std::vector<int> position_of;         // by rank
  std::vector<int> rank_at;             // by position
  std::vector<int> ranks_before;        // by node: number of ranks of the nodes before it
  int lanes = 1;

  int world_size() const { return static_cast<int>(node_of.size()); }
  int node_count() const { return static_cast<int>(nodes.size()); }
  int local_count(int node) const { return static_cast<int>(nodes[node].size()); }
  int lane_of(int rank) const { return local_of[rank] % lanes; }
  // Returns whether this rank communicates for its lane on its node.
  bool leads_lane(int rank) const { return local_of[rank] < lanes; }
  // Returns the rank that communicates for a lane on a node.
  int lane_leader(int lane, int node) const { return nodes[node][lane]; }

  // Return the positions of one lane, and of the part of it that lies on one node.
  Range lane_positions(int lane) const;
  Range lane_positions(int lane, int node) const;

 private:
  friend NodeLayout make_node_layout(std::span<const std::string> node_of_rank);
  std::vector<std::size_t> group_begin_;  // lane-major, one per (lane, node), and the end
};

// node_of_rank: for each rank a text that is equal for the ranks of one node.
NodeLayout make_node_layout(std::span<const std::string> node_of_rank);

// PeerLink: a connection between two ranks of different nodes.
struct PeerLink {
  int peer = -1;
  bool carries_data = false;  // both lead the same lane; otherwise it only carries news of failures
  friend bool operator==(const PeerLink&, const PeerLink&) = default;
};

// Returns the links of one rank, ascending by peer. Every rank has at least one link to every
// other node. So news of a failure reaches it even if the other ranks of its node are busy,
// stopped or dead. If that node has two ranks, it has two links, so that one of them can report
// on the other.
std::vector<PeerLink> links_of(const NodeLayout& layout, int rank);

}  // namespace ddprun
