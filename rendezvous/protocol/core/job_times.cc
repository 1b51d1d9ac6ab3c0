#include "rendezvous/protocol/core/job_times.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include "base/concat.h"

namespace ddprun {
namespace {

constexpr double kSmallestShown = 0.0005;

std::string percent(double share) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", share * 100);
  return text.data();
}

// Returns "12.3 s", "12 min 5 s", "4 h 12 min" or "3 d 4 h".
std::string long_time(Duration time) {
  using namespace std::chrono;
  if (time < minutes(1)) return to_text(time);
  const auto s = duration_cast<seconds>(time).count();
  if (time < hours(1)) return concat(s / 60, " min ", s % 60, " s");
  if (time < days(1)) return concat(s / 3600, " h ", s % 3600 / 60, " min");
  return concat(s / 86400, " d ", s % 86400 / 3600, " h");
}

}  // namespace

Duration JobTimes::wall() const {
  return std::accumulate(by_cause.begin(), by_cause.end(), Duration(0));
}

double JobTimes::goodput() const {
  const Duration all = wall();
  if (all <= Duration(0)) return 0;
  return static_cast<double>((*this)[TimeCause::kTraining].count()) /
         static_cast<double>(all.count());
}

std::string goodput_text(const JobTimes& times) {
  using enum TimeCause;
  const Duration start = times.first_starting + times.first_loading;
  const Duration restarts =
      times[kStarting] + times[kLoading] - start + times[kRecovery] + times[kLostWork];
  std::vector<std::pair<Duration, std::string>> losses{
      {start, "start"},
      {times[kWaiting], "waiting for nodes"},
      {restarts, times.restarts() > 0 ? concat("restarts (", times.restarts(), ")") : "recovery"},
      {times[kCheckpoint], "checkpoints"},
      {times[kHang], "hangs"},
      {times[kStopped], "stopped"}};
  std::ranges::stable_sort(losses, [](const auto& a, const auto& b) { return a.first > b.first; });
  const Duration wall = times.wall();
  const auto whole = static_cast<double>(std::max(wall, Duration(1)).count());
  std::string text = concat("goodput ", times.has_steps ? "" : "at most ", percent(times.goodput()),
                            " of ", long_time(wall));
  const char* separator = ": ";
  for (const auto& [time, what] : losses) {
    const double share = static_cast<double>(time.count()) / whole;
    if (share < kSmallestShown) break;
    text += concat(std::exchange(separator, ", "), percent(share), " ", what);
  }
  return text;
}

}  // namespace ddprun
