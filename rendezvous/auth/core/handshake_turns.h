// HandshakeTurns: limits how many TLS handshakes an address may have begun and not completed.
// The first message of a handshake costs the service a signature, but costs its client nothing.
//
// A turn is free again when its handshake is complete, and at the latest kHold after it began.
// So a client that abandons or stalls a handshake blocks others of its address for no longer
// than that.
//
// A value type without a clock; one owner thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <string>

#include "base/clock.h"

namespace ddprun {

class HandshakeTurns {
 public:
  // 1000 handshakes a second take about half of a core. A smaller flood delays no other client
  // of the same address, for example one that shares a gateway.
  static constexpr std::size_t kTurns = 1000;
  static constexpr Duration kHold = std::chrono::seconds(1);
  // How many handshakes of an address may wait for a turn, and for how long. Others are told to
  // try later.
  static constexpr std::size_t kWaiting = 100;
  static constexpr Duration kWait = std::chrono::seconds(1);

  // turns: the limit for one address.
  explicit HandshakeTurns(std::size_t turns = kTurns) : most_(turns) {}

  // Takes a turn for a handshake that begins now. False: all turns of the address are taken.
  bool begin(const std::string& address, TimePoint now) {
    std::deque<TimePoint>& begun = begun_[address];
    while (!begun.empty() && begun.front() + kHold <= now) begun.pop_front();
    if (begun.size() >= most_) return false;
    begun.push_back(now);
    if (begun_.size() > kAddresses) forget_old(now);
    return true;
  }

  // Frees a turn, because a handshake of that address is complete.
  void complete(const std::string& address) {
    const auto found = begun_.find(address);
    if (found == begun_.end() || found->second.empty()) return;
    found->second.pop_front();
    if (found->second.empty()) begun_.erase(found);
  }

  // Returns the time by which the address has a free turn.
  TimePoint free_at(const std::string& address, TimePoint now) const {
    const auto found = begun_.find(address);
    const bool is_full = found != begun_.end() && found->second.size() >= most_;
    return is_full ? std::max(now, found->second.front() + kHold) : now;
  }

  std::size_t addresses() const { return begun_.size(); }

 private:
  static constexpr std::size_t kAddresses = 1024;

  // Removes addresses whose turns have all expired. The others stay: there are at most as many
  // as handshakes in progress.
  void forget_old(TimePoint now) {
    std::erase_if(begun_, [&](const auto& entry) {
      return entry.second.empty() || entry.second.back() + kHold <= now;
    });
  }

  std::size_t most_;
  std::map<std::string, std::deque<TimePoint>> begun_;
};

}  // namespace ddprun
