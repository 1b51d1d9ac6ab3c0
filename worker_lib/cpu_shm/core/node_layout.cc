#include "worker_lib/cpu_shm/core/node_layout.h"

#include <algorithm>
#include <map>
#include <set>

namespace ddprun {

Range NodeLayout::lane_positions(int lane) const {
  const std::size_t first = lane * nodes.size();
  return {group_begin_[first], group_begin_[first + nodes.size()]};
}

Range NodeLayout::lane_positions(int lane, int node) const {
  const std::size_t group = lane * nodes.size() + node;
  return {group_begin_[group], group_begin_[group + 1]};
}

NodeLayout make_node_layout(std::span<const std::string> node_of_rank) {
  NodeLayout layout;
  std::map<std::string, int> index_of;
  for (const std::string& node : node_of_rank) {
    const int rank = layout.world_size();
    const auto [entry, is_new] = index_of.try_emplace(node, layout.node_count());
    if (is_new) layout.nodes.emplace_back();
    std::vector<int>& ranks = layout.nodes[entry->second];
    layout.node_of.push_back(entry->second);
    layout.local_of.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(rank);
  }
  std::size_t smallest = layout.nodes.front().size();
  int ranks_before = 0;
  for (const auto& ranks : layout.nodes) {
    smallest = std::min(smallest, ranks.size());
    layout.ranks_before.push_back(ranks_before);
    ranks_before += static_cast<int>(ranks.size());
  }
  layout.lanes = static_cast<int>(smallest);

  layout.position_of.resize(node_of_rank.size());
  for (int lane = 0; lane < layout.lanes; ++lane) {
    for (const auto& ranks : layout.nodes) {
      layout.group_begin_.push_back(layout.rank_at.size());
      for (std::size_t local = lane; local < ranks.size(); local += smallest) {
        layout.position_of[ranks[local]] = static_cast<int>(layout.rank_at.size());
        layout.rank_at.push_back(ranks[local]);
      }
    }
  }
  layout.group_begin_.push_back(layout.rank_at.size());
  return layout;
}

std::vector<PeerLink> links_of(const NodeLayout& layout, int rank) {
  const int my_node = layout.node_of[rank];
  const int my_local = layout.local_of[rank];
  const int my_count = layout.local_count(my_node);
  std::vector<PeerLink> links;
  for (int node = 0; node < layout.node_count(); ++node) {
    if (node == my_node) continue;
    // Both sides iterate over the larger node's ranks; the smaller node's ranks take turns, two
    // at a time.
    const int their_count = layout.local_count(node);
    const bool i_walk = std::pair(my_count, node) > std::pair(their_count, my_node);
    std::set<int> peers;  // by local index
    for (int turn = 0; turn < std::max(my_count, their_count); ++turn) {
      for (const int next : {turn, turn + 1}) {
        const int mine = i_walk ? turn : next % my_count;
        const int theirs = i_walk ? next % their_count : turn;
        if (mine == my_local) peers.insert(theirs);
      }
    }
    for (const int peer : peers) {
      links.push_back({layout.nodes[node][peer], layout.leads_lane(rank) && peer == my_local});
    }
  }
  std::sort(links.begin(), links.end(),
            [](const auto& a, const auto& b) { return a.peer < b.peer; });
  return links;
}

}  // namespace ddprun
