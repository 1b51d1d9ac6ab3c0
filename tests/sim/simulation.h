// Simulation: the clock, the events and the dice of a simulated world. One seed decides everything
// that happens, so a failure can be replayed. One owner thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/enum_names.h"
#include "base/rng.h"

namespace ddprun::sim {

// Counts: how often each value of an enumeration was seen, whose values are 0, 1, ...
template <class Kind, std::size_t kKinds>
class Counts {
 public:
  int& operator[](Kind what) { return counts_[static_cast<std::size_t>(what)]; }
  void operator+=(const Counts& more) {
    for (std::size_t i = 0; i < kKinds; ++i) counts_[i] += more.counts_[i];
  }

 private:
  std::array<int, kKinds> counts_{};
};

class Simulation {
 protected:
  explicit Simulation(std::uint64_t seed) : rng_(seed) {}
  ~Simulation() = default;

  // Runs `what` after the delay. Events of the same time run in the order of these calls.
  void at(Duration delay, std::function<void()> what) {
    events_.push({now_ + delay, next_order_++, std::move(what)});
  }

  // Takes the next event, and sets now_ to its time. REQUIRES: there is one.
  std::function<void()> next_event() {
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    return event.run;
  }
  bool has_events() const { return !events_.empty(); }

  // Returns a random duration.
  Duration between(int min_ms, int max_ms) {
    const auto micros = static_cast<std::uint64_t>(max_ms - min_ms) * 1000 + 1;
    return std::chrono::milliseconds(min_ms) + std::chrono::microseconds(rng_.below(micros));
  }

  Rng rng_;
  TimePoint now_{std::chrono::seconds(1)};
  std::uint64_t next_order_ = 0;

 private:
  struct Event {
    TimePoint time;
    std::uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  std::priority_queue<Event> events_;
};

}  // namespace ddprun::sim
