#include "launcher/hang/core/step_collector.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace ddprun {
namespace {

static_assert(kStepMarks <= kMaxReportedSteps, "a report may have all that is kept");

struct StepTime {
  std::uint32_t whole_us = 0;
  std::uint32_t own_us = 0;  // without the waits
};

// Returns the time of the step that was reported as number `at` of the marks. nullopt: the report
// before is not known, or the worker has written nonsense.
std::optional<StepTime> time_of(const std::vector<StepEntry>& marks, std::size_t at) {
  if (at == 0) return std::nullopt;
  const StepEntry& before = marks[at - 1];
  const StepEntry& now = marks[at];
  const std::uint64_t whole = now.ns - before.ns;
  const std::uint64_t waited = std::min(now.waited_ns - before.waited_ns, whole);
  constexpr std::uint64_t kLongest =
      std::uint64_t{std::numeric_limits<std::uint32_t>::max()} * 1000;
  if (before.number + 1 != now.number || whole > kLongest) return std::nullopt;
  return StepTime{.whole_us = static_cast<std::uint32_t>(whole / 1000),
                  .own_us = static_cast<std::uint32_t>((whole - waited) / 1000)};
}

}  // namespace

std::vector<StepTimes> StepCollector::take(const std::vector<std::vector<StepEntry>>& marks,
                                           std::size_t most) {
  std::vector<StepTimes> steps;
  if (marks.empty()) return steps;
  for (std::size_t i = 1; i < marks[0].size(); ++i) {
    const StepEntry& first = marks[0][i];
    if (first.number <= last_taken_) continue;
    StepTimes joined{.step = first.step};
    const auto join = [&](const std::vector<StepEntry>& of_one) {
      // A number that is there twice does not show which of the steps is meant: it may count
      // within an epoch.
      if (std::ranges::count(of_one, first.step, &StepEntry::step) != 1) return false;
      const auto found = std::ranges::find(of_one, first.step, &StepEntry::step);
      const auto time = time_of(of_one, static_cast<std::size_t>(found - of_one.begin()));
      if (!time) return false;
      joined.whole_us = std::max(joined.whole_us, time->whole_us);
      joined.own_us.push_back(time->own_us);
      return true;
    };
    if (!std::ranges::all_of(marks, join)) continue;
    last_taken_ = first.number;
    steps.push_back(std::move(joined));
  }
  if (steps.size() > most) {
    steps.erase(steps.begin(), steps.end() - static_cast<std::ptrdiff_t>(most));
  }
  return steps;
}

}  // namespace ddprun
