#include "worker_lib/cpu_calls/core/relay.h"

#include <bit>

namespace ddprun {

Relay relay_in_chain(int node, int nodes) {
  Relay relay{.from = node - 1, .to = {}};
  if (node + 1 < nodes) relay.to.push_back(node + 1);
  return relay;
}

// A node receives from the node whose number lacks its lowest bit. It sends to the nodes with
// one further, lower bit; the one with the largest subtree comes first.
Relay relay_in_tree(int node, int nodes) {
  const auto number = static_cast<unsigned>(node);
  Relay relay{.from = node == 0 ? -1 : static_cast<int>(number & (number - 1)), .to = {}};
  const int bits =
      node == 0 ? std::bit_width(static_cast<unsigned>(nodes - 1)) : std::countr_zero(number);
  for (int bit = bits - 1; bit >= 0; --bit) {
    const int next = node + (1 << bit);
    if (next < nodes) relay.to.push_back(next);
  }
  return relay;
}

bool tree_is_shorter(std::size_t chunks, int nodes) {
  const std::size_t depth = std::bit_width(static_cast<unsigned>(nodes - 1));
  return chunks * depth + 2 < chunks + static_cast<std::size_t>(nodes);
}

}  // namespace ddprun
