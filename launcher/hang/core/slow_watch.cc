#include "launcher/hang/core/slow_watch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/concat.h"

namespace ddprun {
namespace {

struct StepTime {
  Duration whole{};
  Duration own{};  // without the waits
};

// Returns the time of the step that was reported as number `at` of the marks. nullopt: the report
// before is not known, or the worker has written nonsense.
std::optional<StepTime> time_of(const std::vector<StepEntry>& marks, std::size_t at) {
  if (at == 0) return std::nullopt;
  const StepEntry& before = marks[at - 1];
  const StepEntry& now = marks[at];
  const std::uint64_t whole = now.ns - before.ns;
  const std::uint64_t waited = now.waited_ns - before.waited_ns;
  constexpr auto kLongest = static_cast<std::uint64_t>(kLongestTimeout.count());
  if (before.number + 1 != now.number || whole > kLongest) return std::nullopt;
  const auto blocked = static_cast<Duration::rep>(std::min(waited, whole));
  const Duration time(static_cast<Duration::rep>(whole));
  return StepTime{.whole = time, .own = time - Duration(blocked)};
}

bool has(const std::vector<SlowFinding>& findings, int worker) {
  return std::ranges::any_of(findings,
                             [&](const SlowFinding& one) { return one.ranks.front() == worker; });
}

}  // namespace

void SlowWatch::begin(Rank first_rank, std::size_t workers, std::string node) {
  first_rank_ = first_rank.value;
  node_ = std::move(node);
  ranks_ = SlowRanks(std::vector<int>(workers, 0));
  last_taken_ = 0;
  named_.assign(workers, 0);
  findings_.clear();
}

void SlowWatch::take_steps(const std::vector<std::vector<StepEntry>>& marks) {
  std::vector<Duration> own(marks.size());
  for (std::size_t i = 1; i < marks[0].size(); ++i) {
    const StepEntry& first = marks[0][i];
    if (first.number <= last_taken_) continue;
    Duration whole{};
    const auto join = [&](std::size_t worker) {
      // A number that is there twice does not show which of the steps is meant: it may count
      // within an epoch.
      if (std::ranges::count(marks[worker], first.step, &StepEntry::step) != 1) return false;
      const auto found = std::ranges::find(marks[worker], first.step, &StepEntry::step);
      const auto at = static_cast<std::size_t>(found - marks[worker].begin());
      const std::optional<StepTime> time = time_of(marks[worker], at);
      if (!time) return false;
      own[worker] = time->own;
      whole = std::max(whole, time->whole);
      return true;
    };
    bool has_all = true;
    for (std::size_t worker = 0; worker < marks.size() && has_all; ++worker) {
      has_all = join(worker);
    }
    if (!has_all) continue;
    last_taken_ = first.number;
    ranks_.take(whole, own);
  }
}

std::vector<std::string> SlowWatch::look(const std::vector<std::vector<StepEntry>>& marks) {
  std::vector<std::string> lines;
  if (marks.size() < 2 || marks.size() != named_.size()) return lines;
  take_steps(marks);
  const std::vector<SlowFinding> before = std::exchange(findings_, ranks_.findings());
  const auto tell = [&](const SlowFinding& finding, bool is_slow) {
    const int worker = finding.ranks.front();
    int& times = named_[static_cast<std::size_t>(worker)];
    // Both lines of a pair are written, or none.
    if (is_slow) ++times;
    if (times > kMostNamed) return;
    SlowFinding named = finding;
    named.ranks = {first_rank_ + worker};
    lines.push_back(is_slow
                        ? slow_text(named, node_)
                        : concat("rank ", named.ranks.front(), " is as fast as the others again"));
  };
  for (const SlowFinding& one : findings_) {
    if (!has(before, one.ranks.front())) tell(one, true);
  }
  for (const SlowFinding& one : before) {
    if (!has(findings_, one.ranks.front())) tell(one, false);
  }
  return lines;
}

std::string SlowWatch::slow(std::size_t worker) const {
  for (const SlowFinding& one : findings_) {
    if (one.ranks.front() == static_cast<int>(worker)) return cost_text(one.share);
  }
  return {};
}

}  // namespace ddprun
