// NodeProgress: what an agent remembers of the work of its node between two reports: the highest
// step, how long the workers were suspended, which ranks are slow, and when to report next.
//
// Owner: StatusReporter, on the agent's one thread. Pure: time is an argument.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "rendezvous/protocol/core/rank_row.h"
#include "rendezvous/protocol/core/step_report.h"

namespace ddprun {

class NodeProgress {
 public:
  // Between the reports of node 0. Each pause is twice as long as the one before it.
  static constexpr Duration kFirstPause = std::chrono::seconds(1);
  static constexpr Duration kLongestPause = std::chrono::seconds(30);

  // Begins a generation on this node.
  void generation_began(TimePoint now);
  // Returns when the last generation began; nullopt: none has begun on this node.
  std::optional<TimePoint> generation_since() const { return generation_since_; }

  // Notes that the workers were suspended (SIGTSTP), or continue. resumed() has no effect on
  // workers that run.
  void suspended(TimePoint now) { suspended_since_ = now; }
  void resumed(TimePoint now);
  // Returns how long the workers of this generation have been suspended.
  Duration suspended_for(TimePoint now) const;

  // Notes the highest step that workers of this generation have reported; nullopt: none.
  void see_step(std::optional<std::int64_t> step);
  // Returns the highest step of all generations on this node; nullopt: none.
  std::optional<std::int64_t> highest_step() const { return highest_step_; }

  // Notes which ranks of this node the service has found to be slow.
  void set_slow(std::vector<SlowRank> slow) { slow_ = std::move(slow); }
  // Sets RankRow::slow of those ranks.
  void mark_slow(std::vector<RankRow>& rows) const;

  // Returns after which time the next report of this generation is due.
  Duration next_pause();

 private:
  std::optional<TimePoint> generation_since_;
  std::optional<TimePoint> suspended_since_;
  Duration suspended_for_{};  // before that, in this generation
  std::optional<std::int64_t> highest_step_;
  std::vector<SlowRank> slow_;
  Duration pause_ = kFirstPause;
};

}  // namespace ddprun
