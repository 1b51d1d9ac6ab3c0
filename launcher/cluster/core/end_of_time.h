// EndOfTime: decides when workers must save because the scheduler will end their job.
//
// Owner: the agent of node rank 0, on its one thread. Pure: the owner asks the scheduler and tells
// the answer. The scheduler is asked at the start, and once more before the workers are asked to
// save. In between it is asked each time that half of the time is over, because a time limit can be
// changed.
#pragma once

#include <optional>
#include <string_view>

#include "base/clock.h"

namespace ddprun {

class EndOfTime {
 public:
  static constexpr Duration kShortestPause = std::chrono::seconds(10);
  static constexpr Duration kLongestPause = std::chrono::minutes(10);
  static constexpr Duration kRetryPause = std::chrono::minutes(1);  // while there is no answer

  enum class Step {
    kWait,  // until next()
    kAsk,   // ask the scheduler, then call answered()
    kSave,  // ask the workers to save and to leave; returned once
  };

  // save_before: how long before the end the workers are asked to save. At most half of the time
  // that the first answer says is used.
  EndOfTime(Duration save_before, TimePoint now) : save_before_(save_before), next_(now) {}

  // Returns what to do now. After kAsk it returns kWait until answered() is called.
  Step step(TimePoint now);

  // Takes the time that the job has left. Duration::max(): no limit. nullopt: there was no answer;
  // the last one counts.
  void answered(std::optional<Duration> left, TimePoint now);

  // Returns when step() must be called again; nullopt: not before answered(), or never.
  std::optional<TimePoint> next() const { return is_asking_ || is_over_ ? std::nullopt : next_; }

  // Returns when the scheduler ends the job; nullopt: unknown, or never.
  std::optional<TimePoint> end() const { return end_; }

 private:
  bool is_near(TimePoint now) const { return end_ && now >= *end_ - save_before_; }

  Duration save_before_;
  std::optional<TimePoint> next_;
  std::optional<TimePoint> end_;
  bool was_answered_ = false;
  bool is_asking_ = false;
  bool is_sure_ = false;  // was asked when the end was near
  bool is_over_ = false;  // kSave was returned
};

// Returns the time in what `squeue --format=%L` prints: "1-02:03:04", "2:03", "INVALID" (the time
// is over), "UNLIMITED" (Duration::max()). nullopt: anything else. Source: squeue(1); Slurm's
// secs2time_str().
std::optional<Duration> parse_time_left(std::string_view text);

}  // namespace ddprun
