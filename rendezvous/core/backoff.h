// Backoff: the pauses between tries to reach something that is not there (yet).
//
// Capped exponential with full jitter on the upper half: pause n is drawn from [b/2, b] with
// b = min(cap, initial * factor^n), so that ten thousand agents that lost one service do not come
// back at one instant. Pure; one owner thread.
#pragma once

#include <algorithm>

#include "base/clock.h"
#include "base/rng.h"

namespace ddprun {

struct BackoffOptions {
  Duration initial = std::chrono::milliseconds(50);
  Duration cap = std::chrono::seconds(1);
  double factor = 2.0;
};

class Backoff {
 public:
  explicit Backoff(BackoffOptions options) : options_(options), bound_(options.initial) {}

  // The next pause.
  Duration next(Rng& rng) {
    const auto half = bound_.count() / 2;
    const Duration pause(
        half + static_cast<Duration::rep>(rng.below(static_cast<std::uint64_t>(half) + 1)));
    bound_ = std::min(options_.cap, std::chrono::duration_cast<Duration>(bound_ * options_.factor));
    return pause;
  }

  void reset() { bound_ = options_.initial; }

 private:
  BackoffOptions options_;
  Duration bound_;
};

}  // namespace ddprun
