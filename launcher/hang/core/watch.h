// HangWatch: decides whether a worker of this node hangs (--hang-timeout).
//
// A worker hangs in two cases:
// - It has reported a step, and then shown no activity for the timeout: no report, no finished
//   call into its group, nothing saved.
// - One call into its group has been in progress for the timeout.
//
// A worker that says that it waits for a long operation of another rank does not hang.
//
// Time is summed from check to check. A check that comes late counts for at most two periods.
// So an agent or machine that was stopped does not take its own absence for a hang.
//
// Owner: HangMonitor, on the agent's thread, while a generation runs. Pure; time is an
// argument.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace ddprun {

// PageSample: what a worker's page says.
struct PageSample {
  std::uint64_t reports = 0;  // 0: it has never reported a step
  std::uint64_t activity = 0;
  std::uint64_t calls = 0;        // into its groups, until now
  std::uint64_t oldest_call = 0;  // number of the oldest call in progress; 0: none
  bool is_patient = false;        // it waits for a long operation of another rank
};

class HangWatch {
 public:
  explicit HangWatch(Duration timeout) : timeout_(timeout) {}

  // Returns the time between checks: one second, or a quarter of a timeout below 4 s.
  Duration period() const;

  // Begins a generation with this many workers.
  void begin(std::size_t workers, TimePoint now);

  // Checks the workers. samples: one per worker; nullopt: it has ended. Returns true if a
  // worker hangs.
  bool look(const std::vector<std::optional<PageSample>>& samples, TimePoint now);

  // Returns how long worker i has shown no activity, as the sum over the checks.
  Duration idle(std::size_t worker) const { return workers_[worker].idle; }
  bool hangs(std::size_t worker) const;

  // Returns the workers that have lived for the timeout without a report of a step or a call into
  // a group; they are not watched. Returns them only once, and an empty list at all other times.
  std::vector<std::size_t> take_silent();

 private:
  struct Watched {
    PageSample last;
    Duration idle{};
    Duration in_call{};
    bool is_silent = false;  // it lives, and has reported no step and made no call
  };

  Duration timeout_;
  TimePoint looked_;
  Duration watched_{};                // time since begin(), as the sum over the checks
  bool has_reported_silent_ = false;  // in any generation
  std::vector<Watched> workers_;
};

}  // namespace ddprun
