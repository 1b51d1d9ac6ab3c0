// JobTimes: where the time of a job went. Each instant of the job has one cause. So the times of
// all causes add up to the wall time. docs/how-to/goodput.md says what each cause means.
//
// Value types and pure functions; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/enum_names.h"

namespace ddprun {

enum class TimeCause {
  kWaiting,     // too few nodes are here
  kStarting,    // from the forming of a generation until all its nodes run workers
  kLoading,     // until a worker reports its first step
  kTraining,    // steps that did not have to be done again
  kCheckpoint,  // workers waited for CheckpointManager
  kLostWork,    // steps that were done again
  kRecovery,    // from the end of a generation until the next one is formed
  kHang,        // workers hung, until that was noticed
  kStopped,     // a person stopped or paused the job
};

inline constexpr std::size_t kTimeCauses = 9;
// Names in messages, pages and the journal.
inline constexpr EnumNames<TimeCause, kTimeCauses> kTimeCauseWords{
    {{TimeCause::kWaiting, "waiting_for_nodes"},
     {TimeCause::kStarting, "starting"},
     {TimeCause::kLoading, "loading"},
     {TimeCause::kTraining, "training"},
     {TimeCause::kCheckpoint, "checkpoint"},
     {TimeCause::kLostWork, "lost_work"},
     {TimeCause::kRecovery, "recovery"},
     {TimeCause::kHang, "hang"},
     {TimeCause::kStopped, "stopped"}}};

// WorkTimes: what an agent knows about the time of its workers in this generation.
struct WorkTimes {
  std::optional<std::int64_t> first_step = {};  // the first that a worker reported
  Duration since_first{};                       // the time since then
  Duration checkpoint{};  // the longest time that one worker waited for checkpoints
  Duration stopped{};     // SIGTSTP had stopped the workers

  friend bool operator==(const WorkTimes&, const WorkTimes&) = default;
};

struct JobTimes {
  std::array<Duration, kTimeCauses> by_cause{};
  // The parts of kStarting and kLoading before the first restart.
  Duration first_starting{};
  Duration first_loading{};
  int generations = 0;     // that were formed
  bool has_steps = false;  // a worker has reported a step

  Duration& operator[](TimeCause cause) { return by_cause[static_cast<std::size_t>(cause)]; }
  Duration operator[](TimeCause cause) const { return by_cause[static_cast<std::size_t>(cause)]; }
  // Returns the sum of all causes.
  Duration wall() const;
  // Returns the share of kTraining, from 0 to 1. 0 if no time has passed.
  double goodput() const;
  int restarts() const { return generations > 1 ? generations - 1 : 0; }

  friend bool operator==(const JobTimes&, const JobTimes&) = default;
};

// Returns "goodput 97.3 % of 4 h 12 min: 1.9 % restarts (3), 0.8 % checkpoints". The largest losses
// come first. Losses below 0.05 % are left out. If no worker has reported a step, the text begins
// with "goodput at most", because lost work is not known.
std::string goodput_text(const JobTimes& times);

}  // namespace ddprun
