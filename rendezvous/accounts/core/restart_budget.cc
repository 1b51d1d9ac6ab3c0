#include "rendezvous/accounts/core/restart_budget.h"

#include <algorithm>

#include "base/concat.h"
#include "base/final_error.h"
#include "base/seconds.h"

namespace ddprun {
namespace {

bool is_of_a_worker(const WorkerEnd& end) {
  return is_of_process(end) || end.kind == EndKind::kHung;
}

bool says_final_error(const WorkerEnd& end) {
  const auto says = [](const std::string& text) {
    return text.find(kFinalError) != std::string::npos;
  };
  return says(end.message) || std::ranges::any_of(end.stderr_tail, says);
}

}  // namespace

RestartBudget::Decision RestartBudget::decide(const WorkerEnd& first, std::optional<Duration> lived,
                                              std::optional<std::int64_t> reached, TimePoint now) {
  strike(first, reached);
  const bool quick = is_of_a_worker(first) && lived && *lived < kQuick;
  quick_in_a_row_ = quick ? quick_in_a_row_ + 1 : 0;
  if (first.kind == EndKind::kNotStarted) return {};
  if (const int code = exit_code_of(first);
      is_of_a_worker(first) && contains(rules_.final_codes, code)) {
    return {.why_not = concat("exit code ", code, " is one of --no-restart-on")};
  }
  if (is_of_a_worker(first) && says_final_error(first)) {
    return {.why_not = "its error says that a restart would fail in the same way"};
  }
  if (rules_.on_progress && strikes_.in_a_row >= kStrikes) {
    return {.why_not = concat("failed ", strikes_.in_a_row, " times in a row at step ",
                              *strikes_.step, " (--restart-on-progress)")};
  }
  forget_old(now);
  if (counted() >= max_) {
    if (!has_window() && !rules_.on_progress) return {};
    return {.why_not = "restarts used: " + in_words(now)};
  }
  ++used_;
  ++strikes_.restarts;
  if (has_window()) times_.push_back(now);
  if (times_.size() > kTimesKept) times_.pop_front();
  Decision decision{.restart = true};
  // kFirstPause times 2 to the power of 6 is longer than kLongestPause.
  if (quick_in_a_row_ > 1) {
    decision.pause = std::min(kLongestPause, kFirstPause * (1 << std::min(quick_in_a_row_ - 2, 6)));
  }
  return decision;
}

// Records where the failure occurred. A lost node has not reported a step itself; it counts as
// having reached the step of the others.
void RestartBudget::strike(const WorkerEnd& first, std::optional<std::int64_t> reached) {
  if (!rules_.on_progress) return;
  if (reached && (!strikes_.step || *reached > *strikes_.step)) strikes_.restarts = 0;
  const std::optional<std::int64_t> step = first.step ? first.step : reached;
  if (!step || step != strikes_.step) strikes_.in_a_row = 0;
  strikes_.step = step;
  if (step) ++strikes_.in_a_row;
}

int RestartBudget::counted() const {
  int counted = used_;
  if (has_window()) counted = static_cast<int>(times_.size());
  if (rules_.on_progress) counted = std::min(counted, strikes_.restarts);
  return counted;
}

int RestartBudget::left(TimePoint now) const {
  RestartBudget counted_now = *this;
  counted_now.forget_old(now);
  return std::max(0, max_ - counted_now.counted());
}

std::string RestartBudget::in_words(TimePoint now) const {
  const std::string of_max = concat(" of ", max_);
  if (!has_window() && !rules_.on_progress) return std::to_string(used_) + of_max;
  std::string since;
  if (has_window()) since = " within " + in_seconds(rules_.window) + " s";
  if (rules_.on_progress) since += " without progress";
  return concat(used_, " (", max_ - left(now), of_max, since, ")");
}

void RestartBudget::believe(int used) {
  constexpr int kMost = 1 << 30;  // no service reaches this number
  const bool is_bounded = !has_window() && !rules_.on_progress;
  used_ = std::max(used_, std::min(used, is_bounded ? max_ : kMost));
}

std::vector<Duration> RestartBudget::ages(TimePoint now) const {
  std::vector<Duration> ages;
  for (const TimePoint time : times_) ages.push_back(now - time);
  return ages;
}

void RestartBudget::restore(int used, const std::vector<Duration>& ages, const Strikes& strikes,
                            TimePoint now) {
  used_ = used;
  strikes_ = strikes;
  if (!has_window()) return;
  for (const Duration age : ages) times_.push_back(now - age);
}

void RestartBudget::forget_old(TimePoint now) {
  while (!times_.empty() && times_.front() + rules_.window <= now) times_.pop_front();
}

}  // namespace ddprun
