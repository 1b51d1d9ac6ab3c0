#include "worker_lib/collective/rank_names.h"

#include "base/joined.h"

namespace ddprun {

std::string name_rank(int rank) { return "rank " + std::to_string(rank); }

std::string name_ranks(std::span<const int> ascending) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ascending.size();) {
    std::size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    if (last - i < 2) last = i;  // "1, 2" reads better than "1-2"
    parts.push_back(std::to_string(ascending[i]));
    if (last > i) parts.back() += "-" + std::to_string(ascending[last]);
    i = last + 1;
  }
  return (ascending.size() == 1 ? "rank " : "ranks ") + joined_with_and(parts);
}

}  // namespace ddprun
