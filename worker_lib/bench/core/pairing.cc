#include "worker_lib/bench/core/pairing.h"

#include <algorithm>

namespace ddprun {

std::vector<std::vector<std::pair<int, int>>> pair_rounds(int nodes) {
  const int places = nodes + nodes % 2;  // the partner of the last place has a break
  std::vector<std::vector<std::pair<int, int>>> rounds;
  for (int round = 0; round + 1 < places; ++round) {
    std::vector<std::pair<int, int>> pairs;
    const auto node_at = [&](int place) {
      return place == 0 ? 0 : 1 + (place - 1 + round) % (places - 1);
    };
    for (int place = 0; place < places / 2; ++place) {
      const auto [low, high] = std::minmax({node_at(place), node_at(places - 1 - place)});
      if (high < nodes) pairs.emplace_back(low, high);
    }
    if (!pairs.empty()) rounds.push_back(std::move(pairs));
  }
  return rounds;
}

}  // namespace ddprun
