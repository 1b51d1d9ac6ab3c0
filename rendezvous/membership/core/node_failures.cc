#include "rendezvous/membership/core/node_failures.h"

#include <algorithm>

namespace ddprun {

int NodeFailures::blame(const std::string& host) {
  const int count = ++counts_[host];
  if (counts_.size() > kHostsKept) {
    counts_.erase(std::ranges::min_element(
        counts_, [](const auto& a, const auto& b) { return a.second < b.second; }));
  }
  return count;
}

int NodeFailures::of(const std::string& host) const {
  const auto found = counts_.find(host);
  return found == counts_.end() ? 0 : found->second;
}

}  // namespace ddprun
