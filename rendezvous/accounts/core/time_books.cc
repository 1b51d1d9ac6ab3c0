#include "rendezvous/accounts/core/time_books.h"

#include <algorithm>
#include <utility>

namespace ddprun {
namespace {

// Returns the part of the time that belongs to the steps from `step` on.
Duration share_from(const TrainedSteps& steps, std::int64_t step) {
  if (step <= steps.first) return steps.time;
  // Programs may report any number, so the difference may not fit in 64 bits.
  const double count = static_cast<double>(steps.last) - static_cast<double>(steps.first) + 1;
  const double again = static_cast<double>(steps.last) - static_cast<double>(step) + 1;
  const double time = static_cast<double>(steps.time.count()) * (again / count);
  return std::clamp(Duration(static_cast<Duration::rep>(time)), Duration(0), steps.time);
}

}  // namespace

TimeBooks::TimeBooks(const BooksState& state, TimePoint now) : state_(state) {
  state_.since = std::min(state_.since, now);
  if (state_.left) state_.left = std::clamp(*state_.left, state_.since, now);
  if (state_.in_generation && !state_.open.started) state_.open.started = state_.since;
}

void TimeBooks::form(TimePoint now) {
  if (is_over_) return;
  settle();
  book(now);
  state_.in_generation = true;
  state_.open.heard = now;
  ++state_.booked.generations;
}

void TimeBooks::started(TimePoint now) {
  if (!state_.in_generation || state_.left) return;
  state_.open.started = state_.open.heard = now;
}

void TimeBooks::report(const WorkTimes& work, std::optional<std::int64_t> step, TimePoint now) {
  if (!state_.in_generation) return;
  state_.open.heard = now;
  state_.open.checkpoint = std::max(state_.open.checkpoint, work.checkpoint);
  state_.open.stopped = std::max(state_.open.stopped, work.stopped);
  if (!work.first_step) return;
  const TimePoint at = now - work.since_first;
  if (!state_.open.first_step_at) {
    state_.open.first_step = state_.open.last_step = *work.first_step;
    state_.booked.has_steps = true;
    lose_from(*work.first_step);
  }
  state_.open.first_step_at = std::min(state_.open.first_step_at.value_or(at), at);
  state_.open.last_step = std::max(state_.open.last_step, step.value_or(state_.open.last_step));
}

void TimeBooks::hung(TimePoint since) {
  if (state_.in_generation && !state_.left) state_.open.hung = since;
}

void TimeBooks::leave(TimeCause cause, TimePoint since, TimePoint now) {
  if (!state_.in_generation || state_.left) return;
  state_.cause = cause;
  state_.left =
      state_.open.hung ? now : std::clamp(since, state_.since, std::max(state_.since, now));
}

void TimeBooks::wait(TimePoint now) {
  settle();
  if (!state_.in_generation && state_.cause == TimeCause::kRecovery)
    turn_to(TimeCause::kWaiting, now);
}

void TimeBooks::stop(TimePoint now) {
  if (!state_.in_generation) return turn_to(TimeCause::kStopped, now);
  leave(TimeCause::kStopped, now, now);
  state_.cause = TimeCause::kStopped;
}

void TimeBooks::end(TimePoint now) {
  settle();
  book(now);
  is_over_ = true;
}

void TimeBooks::begin_again() {
  is_over_ = false;
  state_.cause = TimeCause::kWaiting;
}

JobTimes TimeBooks::as_of(TimePoint now) const {
  TimeBooks until_now = *this;
  until_now.end(now);
  JobTimes& times = until_now.state_.booked;
  if (!times.has_steps) {
    times[TimeCause::kTraining] += std::exchange(times[TimeCause::kLoading], Duration(0));
    times.first_loading = Duration(0);
  }
  return times;
}

// Ends the open period.
void TimeBooks::book(TimePoint until) {
  if (is_over_) return;
  until = std::max(until, state_.since);
  if (state_.in_generation) {
    book_generation(until);
  } else {
    state_.booked[state_.cause] += until - state_.since;
  }
  state_.since = until;
  state_.in_generation = false;
  state_.left.reset();
  state_.open = {};
}

void TimeBooks::book_generation(TimePoint until) {
  using enum TimeCause;
  const TimePoint begin = state_.since;
  const TimePoint hung = std::clamp(state_.open.hung.value_or(until), begin, until);
  const TimePoint stepped = std::clamp(state_.open.first_step_at.value_or(hung), begin, hung);
  // A node's first status may be lost, so a step proves a start, too.
  const TimePoint no_start = state_.open.first_step_at ? begin : hung;
  const TimePoint started = std::clamp(state_.open.started.value_or(no_start), begin, stepped);
  Duration loading = stepped - started;
  Duration training = hung - stepped;
  JobTimes& booked = state_.booked;
  const auto move = [&](Duration& from, Duration time, TimeCause cause) {
    const Duration part = std::min(from, time);
    from -= part;
    booked[cause] += part;
    return time - part;
  };
  move(training, state_.open.checkpoint, kCheckpoint);
  move(loading, move(training, state_.open.stopped, kStopped), kStopped);
  booked[kStarting] += started - begin;
  booked[kLoading] += loading;
  booked[kTraining] += training;
  booked[kHang] += until - hung;
  if (booked.generations <= 1) {
    booked.first_starting += started - begin;
    booked.first_loading += loading;
  }
  if (state_.open.first_step_at) keep_steps(training);
}

// Divides a generation that was left.
void TimeBooks::settle() {
  if (!state_.in_generation || !state_.left) return;
  book(*state_.left);
}

void TimeBooks::turn_to(TimeCause cause, TimePoint now) {
  if (is_over_ || state_.cause == cause) return;
  book(now);
  state_.cause = cause;
}

// Moves the time of the steps from `step` on from training to lost work.
void TimeBooks::lose_from(std::int64_t step) {
  std::vector<TrainedSteps>& kept = state_.steps;
  while (!kept.empty() && kept.back().last >= step) {
    const Duration booked = state_.booked[TimeCause::kTraining];
    const Duration lost = std::min(share_from(kept.back(), step), booked);
    state_.booked[TimeCause::kTraining] -= lost;
    state_.booked[TimeCause::kLostWork] += lost;
    kept.back().time -= lost;
    if (kept.back().first < step) {
      kept.back().last = step - 1;
      return;
    }
    kept.pop_back();
  }
}

void TimeBooks::keep_steps(Duration training) {
  std::vector<TrainedSteps>& kept = state_.steps;
  kept.push_back({state_.open.first_step, state_.open.last_step, training});
  if (kept.size() <= kSpansKept) return;
  kept[1].first = kept[0].first;
  kept[1].time += kept[0].time;
  kept.erase(kept.begin());
}

}  // namespace ddprun
