#include "rendezvous/core/restart_budget.h"

#include <algorithm>

#include "base/seconds.h"

namespace ddprun {
namespace {

bool is_of_a_worker(const WorkerEnd& end) {
  return end.kind == EndKind::kExited || end.kind == EndKind::kSignaled;
}

}  // namespace

RestartBudget::Decision RestartBudget::decide(const WorkerEnd& first, std::optional<Duration> lived,
                                              TimePoint now) {
  const bool quick = is_of_a_worker(first) && lived && *lived < kQuick;
  quick_in_a_row_ = quick ? quick_in_a_row_ + 1 : 0;
  if (first.kind == EndKind::kNotStarted) return {};
  if (const int code = exit_code_of(first);
      is_of_a_worker(first) && contains(rules_.final_codes, code)) {
    return {.why_not = "exit code " + std::to_string(code) + " is one of --no-restart-on"};
  }
  forget_old(now);
  if (counted() >= max_) {
    if (!has_window()) return {};
    return {.why_not = "restarts used: " + in_words(now)};
  }
  ++used_;
  if (has_window()) times_.push_back(now);
  if (times_.size() > kTimesKept) times_.pop_front();
  Decision decision{.restart = true};
  // 2 to the 6th times the first pause is more than the longest.
  if (quick_in_a_row_ > 1) {
    decision.pause = std::min(kLongestPause, kFirstPause * (1 << std::min(quick_in_a_row_ - 2, 6)));
  }
  return decision;
}

std::string RestartBudget::in_words(TimePoint now) const {
  const std::string of_max = " of " + std::to_string(max_);
  if (!has_window()) return std::to_string(used_) + of_max;
  RestartBudget counted_now = *this;
  counted_now.forget_old(now);
  return std::to_string(used_) + " (" + std::to_string(counted_now.counted()) + of_max +
         " within " + in_seconds(rules_.window) + " s)";
}

void RestartBudget::believe(int used) {
  constexpr int kMost = 1 << 30;  // more than any service lives to see
  used_ = std::max(used_, std::min(used, has_window() ? kMost : max_));
}

std::vector<Duration> RestartBudget::ages(TimePoint now) const {
  std::vector<Duration> ages;
  for (const TimePoint time : times_) ages.push_back(now - time);
  return ages;
}

void RestartBudget::restore(int used, const std::vector<Duration>& ages, TimePoint now) {
  used_ = used;
  if (!has_window()) return;
  for (const Duration age : ages) times_.push_back(now - age);
}

void RestartBudget::forget_old(TimePoint now) {
  while (!times_.empty() && times_.front() + rules_.window <= now) times_.pop_front();
}

}  // namespace ddprun
