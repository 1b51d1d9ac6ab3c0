// Backoff: how long to pause before the next try. Grows to a bound, and is spread by chance, so
// that a thousand clients of a service that has just come back do not all knock at the same moment.
//
// A value machine without a clock; one owner thread.
#pragma once

#include "base/clock.h"
#include "base/rng.h"

namespace ddprun {

struct BackoffOptions {
  Duration first = std::chrono::milliseconds(5);
  Duration longest = std::chrono::seconds(1);
  double factor = 1.6;
  double spread = 0.5;  // a pause lies within this share of its nominal length, on both sides
};

class Backoff {
 public:
  explicit Backoff(Rng rng, const BackoffOptions& options = {})
      : options_(options), rng_(rng), nominal_(options.first) {}

  // The pause before the next try: nominally first, first * factor, ... up to longest.
  Duration next();

  // After a success: the next pause is a first one again.
  void reset() { nominal_ = options_.first; }

 private:
  BackoffOptions options_;
  Rng rng_;
  Duration nominal_;
};

}  // namespace ddprun
