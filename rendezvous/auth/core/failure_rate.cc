#include "rendezvous/auth/core/failure_rate.h"

#include <algorithm>

namespace ddprun {

void FailureRate::note(const std::string& address, TimePoint now) {
  if (paid_at_.size() >= kAddresses && !paid_at_.contains(address)) {
    std::erase_if(paid_at_, [&](const auto& entry) { return entry.second <= now; });
    if (paid_at_.size() >= kAddresses) {
      paid_at_.erase(
          std::min_element(paid_at_.begin(), paid_at_.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; }));
    }
  }
  TimePoint& paid_at = paid_at_.try_emplace(address, now).first->second;
  paid_at = std::min(std::max(paid_at, now) + kPause, now + kBurst * kPause);
}

bool FailureRate::is_blocked(const std::string& address, TimePoint now) const {
  const auto found = paid_at_.find(address);
  return found != paid_at_.end() && found->second > now + (kBurst - 1) * kPause;
}

}  // namespace ddprun
