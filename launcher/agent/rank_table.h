// RankTable: what the agent tells people about each of its ranks (docs/reference/status.md).
//
// It reads the workers' pages and /proc only when it is asked, and at most once in kPause. The
// workers do nothing for it. Rates are those between two samples: a rank has its mean since it
// began if it was not sampled before.
//
// Owner: NodeWorkers, on the agent's one thread.
#pragma once

#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/worker_page.h"
#include "launcher/control/protocol.h"
#include "launcher/machine/nvml.h"
#include "launcher/output/core/step_rate.h"
#include "rendezvous/protocol/core/rank_row.h"

namespace ddprun {

class RankTable {
 public:
  // A little less than the second between heartbeats, which do not come at exact times.
  static constexpr Duration kPause = std::chrono::milliseconds(900);

  struct Source {
    WorkerView worker;
    const WorkerPage* page = nullptr;  // null: it has none
    bool lives = false;
    GpuUse gpu = {};
  };

  // Returns the rows of the last sample, or null if it is time for another one.
  const std::vector<RankRow>* recent(TimePoint now) const;
  // Takes a sample of the workers, which are those of the last sample or all new.
  const std::vector<RankRow>& sample(const std::vector<Source>& workers, TimePoint now);
  // Drops everything. Call it for the workers of another generation.
  void clear();

 private:
  struct Last {
    StepRate steps;
    pid_t process = 0;
    Duration cpu{};
    TimePoint when;
  };
  static void put_page(const WorkerPage& page, bool lives, TimePoint now, Last& last, RankRow& row);
  static void put_process(const WorkerView& worker, TimePoint now, Last& last, RankRow& row);

  std::vector<RankRow> rows_;
  std::vector<Last> last_;  // by index of the worker
  std::optional<TimePoint> sampled_;
};

}  // namespace ddprun
