// TimeBooks: books each instant of a job to exactly one cause
// (rendezvous/protocol/core/job_times.h).
//
// One period is open at a time. It has one cause, or it is a generation. A generation is divided
// when it is over and its nodes have reported: into starting, loading, training, checkpoints and a
// hang. So periods follow each other without gaps, and their sum is the wall time.
//
//   waiting --form--> generation --leave--> recovery --form--> generation ... --end--> over
//                                           recovery --wait--> waiting
//   generation --leave--> stopped, waiting or recovery --stop--> stopped
//
// Lost work is known only when the next generation reports its first step. Then the time of the
// steps that are done again moves from training to lost work. A generation's time is divided
// evenly among its steps.
//
// Owner: Membership, on the service's thread. Pure; times are arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "rendezvous/protocol/core/job_times.h"

namespace ddprun {

// TrainedSteps: the steps of a generation that have not been done again.
struct TrainedSteps {
  std::int64_t first = 0;
  std::int64_t last = 0;
  Duration time{};  // of kTraining

  friend bool operator==(const TrainedSteps&, const TrainedSteps&) = default;
};

// OpenGeneration: what is known about the open generation.
struct OpenGeneration {
  TimePoint heard;  // of the last event or report
  std::optional<TimePoint> started = {};
  std::optional<TimePoint> first_step_at = {};
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  Duration checkpoint{};
  Duration stopped{};
  std::optional<TimePoint> hung = {};

  friend bool operator==(const OpenGeneration&, const OpenGeneration&) = default;
};

// BooksState: what a restarted service needs. The nodes of a generation may not come back.
struct BooksState {
  JobTimes booked;                  // up to `since`
  TimePoint since;                  // the begin of the open period
  TimeCause cause{};                // of the open period, or of the one after the generation
  bool in_generation = false;       // the open period is a generation
  std::optional<TimePoint> left;    // the generation is over since then, and not divided yet
  OpenGeneration open = {};         // only if in_generation
  std::vector<TrainedSteps> steps;  // ascending, without overlaps; at most kSpansKept

  friend bool operator==(const BooksState&, const BooksState&) = default;
};

class TimeBooks {
 public:
  static constexpr std::size_t kSpansKept = 8;  // more are merged, the oldest first

  // Begins the books of a job that waits for nodes.
  explicit TimeBooks(TimePoint now) : state_{.booked = {}, .since = now} {}
  // Continues the books of an earlier run of the service.
  TimeBooks(const BooksState& state, TimePoint now);

  // Handle the events of a job. Calls that do not fit the open period have no effect.
  // form(): a generation is formed. started(): a node of it runs its workers.
  void form(TimePoint now);
  void started(TimePoint now);
  // Handles a report of a node. Reports count until the next call of form(), wait(), stop() or
  // end(), because nodes report while they end their workers. step: the last step that its workers
  // have reported.
  void report(const WorkTimes& work, std::optional<std::int64_t> step, TimePoint now);
  // Notes since when the workers have hung.
  void hung(TimePoint since);
  // Notes since when the generation is being ended. cause: of the time that follows.
  void leave(TimeCause cause, TimePoint since, TimePoint now);
  // Begins to wait: no workers are left, and too few nodes are here.
  void wait(TimePoint now);
  // Notes that a person has stopped the job.
  void stop(TimePoint now);
  void end(TimePoint now);
  // Continues the books of an ended job: it has waited for nodes since its end.
  void begin_again();

  // Returns the times up to now. Without any report of a step, loading counts as training.
  JobTimes as_of(TimePoint now) const;
  const BooksState& state() const { return state_; }
  // Returns when the first period began.
  TimePoint begun() const { return state_.since - state_.booked.wall(); }
  bool is_in_generation() const { return state_.in_generation && !state_.left; }

 private:
  void book(TimePoint until);
  void book_generation(TimePoint until);
  void settle();
  void turn_to(TimeCause cause, TimePoint now);
  void lose_from(std::int64_t step);
  void keep_steps(Duration training);

  BooksState state_;
  bool is_over_ = false;
};

}  // namespace ddprun
