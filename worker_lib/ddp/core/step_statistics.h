// Computes the times of a training step from the points in time of its events.
//
//   StepRecord record(pass, began, buckets);       the first gradient of an output
//     gradient_came(bucket, now)                   any number of times
//     sent(bucket, now)                            once each
//     computed(now)                                autograd has finished
//     done(bucket, when)                           before or after computed(), in any order
//   statistics.add(record.end(now));
//
// Value types; one owner thread. Time comes as an argument and never goes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "ddprun/step_statistics.h"

namespace ddprun {

// The times of a step, in the order in which tables show them. label: indented below the time
// that it is a part of.
struct StepTime {
  const char* label;
  Duration StepTimes::*of_step;
  Spread StepSummary::*of_summary;
};
inline constexpr StepTime kStepTimes[] = {
    {"forward", &StepTimes::forward, &StepSummary::forward},
    {"  exchange before it", &StepTimes::exchange, &StepSummary::exchange},
    {"backward", &StepTimes::backward, &StepSummary::backward},
    {"  compute", &StepTimes::compute, &StepSummary::compute},
    {"  communication", &StepTimes::communication, &StepSummary::communication},
    {"    overlapped", &StepTimes::overlap, &StepSummary::overlap},
    {"    exposed", &StepTimes::exposed, &StepSummary::exposed},
};

class StepRecord {
 public:
  // pass: its number. buckets: at least one; their times are ignored.
  StepRecord(std::int64_t pass, TimePoint began, std::vector<BucketTimes> buckets);

  void gradient_came(std::size_t bucket, TimePoint now) { moments_[bucket].ready = now; }
  void sent(std::size_t bucket, TimePoint now) { moments_[bucket].sent = now; }
  void computed(TimePoint now) { computed_ = now; }
  void done(std::size_t bucket, TimePoint when) { moments_[bucket].done = when; }

  // Returns the times; the pass is over. Every bucket must be done.
  StepTimes end(TimePoint now) const;

 private:
  struct Moments {
    std::optional<TimePoint> ready, sent, done;
  };
  std::int64_t pass_;
  TimePoint began_;
  std::optional<TimePoint> computed_;
  std::vector<BucketTimes> buckets_;
  std::vector<Moments> moments_;  // by bucket
};

// StepStatistics: the last kRecentSteps steps that were added.
class StepStatistics {
 public:
  void add(StepTimes step);

  // Steps from now on have other buckets. The first of them drops the earlier ones.
  void change_buckets() { have_buckets_changed_ = true; }

  std::optional<StepTimes> last() const;
  StepSummary summary() const;

 private:
  std::deque<StepTimes> recent_;
  bool have_buckets_changed_ = false;
};

}  // namespace ddprun
