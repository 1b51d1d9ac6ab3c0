// FailureRate: finds clients that have failed too often recently; they only get "try later". The
// service counts wrong proofs by address and job. It asks only after a proof has failed. So the
// failures of others never keep out the holder of a key.
//
// Each address may fail kBurst times in a row, and after that once per kPause. An address that
// has not failed for long is forgotten. With more than kAddresses of them, the one whose
// failures expire first is forgotten.
//
// A value type without a clock; one owner thread.
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

  // Counts a failure of that address.
  void note(const std::string& address, TimePoint now);
  // Returns true if the address may not fail again now.
  bool is_blocked(const std::string& address, TimePoint now) const;

 private:
  // The time at which all failures of an address have expired. It is at most kBurst * kPause
  // ahead.
  std::map<std::string, TimePoint> paid_at_;
};

}  // namespace ddprun
