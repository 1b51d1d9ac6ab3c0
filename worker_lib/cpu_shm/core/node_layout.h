// NodeLayout: which ranks share a node, and who talks to whom across nodes.
//
// A pure value; any thread. Every rank computes it from the same list and gets the same answer, so
// it needs no agreement of its own.
//
// Words: a *lane* is a column of ranks, one of each node, that carries a share of the traffic
// between nodes: lane w is the local index w of every node. There are as many lanes as the smallest
// node has ranks. A *position* is a rank's place in the order (lane, node, local index), where a
// rank whose local index is beyond the lanes belongs to lane (index mod lanes): the blocks that one
// lane carries to one node lie side by side in it.
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
  std::vector<int> local_of;            // by rank: its place in its node
  std::vector<int> position_of;         // by rank
  std::vector<int> rank_at;             // by position
  std::vector<int> ranks_before;        // by node: ranks of the nodes before it
  int lanes = 1;

  int world_size() const { return static_cast<int>(node_of.size()); }
  int node_count() const { return static_cast<int>(nodes.size()); }
  int local_count(int node) const { return static_cast<int>(nodes[node].size()); }
  int lane_of(int rank) const { return local_of[rank] % lanes; }
  // Whether this rank speaks for its lane on its node.
  bool leads_lane(int rank) const { return local_of[rank] < lanes; }
  // The rank that speaks for a lane on a node.
  int lane_leader(int lane, int node) const { return nodes[node][lane]; }

  // The positions of one lane, and of the part of it that lies on one node.
  Range lane_positions(int lane) const;
  Range lane_positions(int lane, int node) const;

 private:
  friend NodeLayout make_node_layout(std::span<const std::string> node_of_rank);
  std::vector<std::size_t> group_begin_;  // lane-major, one per (lane, node), and the end
};

// node_of_rank: for each rank a text that is the same for the ranks of one node.
NodeLayout make_node_layout(std::span<const std::string> node_of_rank);

// A connection between two ranks of different nodes.
struct PeerLink {
  int peer = -1;
  bool carries_data = false;  // both lead the same lane; otherwise it only carries news of failures
  friend bool operator==(const PeerLink&, const PeerLink&) = default;
};

// The links of one rank, ascending by peer. Every rank has at least one to every other node, so
// that news of a failure reaches it whoever else is busy, stopped or dead on its own node, and two where that
// node has two ranks, so that one of them can tell of the other.
std::vector<PeerLink> links_of(const NodeLayout& layout, int rank);

}  // namespace ddprun
