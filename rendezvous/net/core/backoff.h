// Backoff: the pause before the next attempt. It grows to a limit, and is random, so that a
// thousand clients of a restarted service do not connect at the same moment.
//
// A value type without a clock; one owner thread.
#pragma once

#include "base/clock.h"
#include "base/rng.h"

namespace ddprun {

struct BackoffOptions {
  Duration first = std::chrono::milliseconds(5);
  Duration longest = std::chrono::seconds(1);
  double factor = 1.6;
  double spread = 0.5;  // a pause differs from its nominal length by at most this share
};

class Backoff {
 public:
  explicit Backoff(Rng rng, const BackoffOptions& options = {})
      : options_(options), rng_(rng), nominal_(options.first) {}

  // Returns the pause before the next attempt: nominally first, first * factor, ... up to
  // longest.
  Duration next();

  // Resets after a success: the next pause is the first one again.
  void reset() { nominal_ = options_.first; }

 private:
  BackoffOptions options_;
  Rng rng_;
  Duration nominal_;
};

}  // namespace ddprun
