// StepShares: what a rank spends the time of its training steps on, in percent. The worker writes
// them to its page (base/worker_page.h), and its agent reads them there. The rest of 100 percent is
// all that has no name here: the optimizer, the program's own work, and data that is loaded without
// a sampler of ddprun.
//
// Values and pure functions; any thread. One thread at a time writes.
#pragma once

#include <optional>

namespace ddprun {

struct WorkerPage;

struct StepShares {
  std::optional<double> data = {};  // waiting for a loader; nullopt: no loader tells
  double forward = 0;
  double backward = 0;
  double communication = 0;  // during which nothing was computed
  double checkpoint = 0;     // waiting for it

  friend bool operator==(const StepShares&, const StepShares&) = default;
};

// Writes the shares, in hundredths of a percent. Values outside 0 to 100 become the nearest of
// these.
void write_step_shares(const StepShares& shares, WorkerPage& page);

// Returns the shares; nullopt: the worker has written none, or a value above 100 percent. Two of
// them may be of different steps if the worker writes meanwhile.
std::optional<StepShares> read_step_shares(const WorkerPage& page);

}  // namespace ddprun
