// FailureRate: who has failed too often of late to be told more than to try later. The service counts
// wrong proofs by address and job, and asks after a proof has failed: the holder of a key is never
// kept out by the failures of others.
//
// Each address may fail kBurst times in a row, and once more per kPause from then on. An address
// that has not failed for long is forgotten; past kAddresses of them the one is forgotten that
// failed longest ago. A value machine without a clock; one owner thread.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "base/clock.h"

namespace ddprun {

class FailureRate {
 public:
  static constexpr int kBurst = 20;
  static constexpr Duration kPause = std::chrono::seconds(1);
  static constexpr std::size_t kAddresses = 4096;

  // Somebody at that address has failed.
  void note(const std::string& address, TimePoint now);
  // Whether the address has used up what it had.
  bool is_blocked(const std::string& address, TimePoint now) const;

 private:
  // When all of its failures will have been made good: the furthest a burst can get ahead is
  // kBurst * kPause.
  std::map<std::string, TimePoint> paid_at_;
};

}  // namespace ddprun
