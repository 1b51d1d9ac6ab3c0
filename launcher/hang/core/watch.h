// HangWatch: whether a worker of this node hangs (--hang-timeout).
//
// A worker counts from its first report of a step on. It hangs when it has shown no activity for the
// timeout (no report, no call into its group that ended, nothing saved), or when one such call has
// been in progress for so long. One that says that it waits for what takes another rank long does not
// hang.
//
// Time is counted from look to look, and a look that comes late counts as two that came in time: an
// agent or a machine that was stopped meanwhile must not take its own absence for a hang.
//
// Owner: the agent, on its thread, while a generation runs. Pure; time comes in.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace ddprun {

// What a worker's page says.
struct PageSample {
  std::uint64_t reports = 0;  // 0: it has never reported a step
  std::uint64_t activity = 0;
  std::uint64_t oldest_call = 0;  // the number of the oldest call in progress; 0: none is
  bool is_patient = false;        // it waits for what takes another one long
};

class HangWatch {
 public:
  explicit HangWatch(Duration timeout) : timeout_(timeout) {}

  // How often to look: once a second, or four times within a shorter timeout.
  Duration period() const;

  // A generation of so many workers begins.
  void begin(std::size_t workers, TimePoint now);

  // Of each worker what its page says, nullopt where it has ended. True: one of them hangs.
  bool look(const std::vector<std::optional<PageSample>>& samples, TimePoint now);

  // Since when, as far as looks tell, worker i has done nothing.
  Duration idle(std::size_t worker) const { return workers_[worker].idle; }
  bool hangs(std::size_t worker) const;

  // Returns the workers that have lived for the timeout and have never reported a step, once: those are
  // not watched. Empty at every other time.
  std::vector<std::size_t> take_silent();

 private:
  struct Watched {
    PageSample last;
    Duration idle{};
    Duration in_call{};
    bool is_silent = false;  // it lives and has reported nothing
  };

  Duration timeout_;
  TimePoint looked_;
  Duration watched_{};            // since begin(), as far as looks tell
  bool has_told_silent_ = false;  // of all generations
  std::vector<Watched> workers_;
};

}  // namespace ddprun
