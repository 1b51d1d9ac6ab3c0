#include "rendezvous/protocol/core/progress.h"

#include "base/concat.h"
#include "base/printed.h"
#include "base/seconds.h"

namespace ddprun {
namespace {

// Returns the number with a comma before each three digits: "-12,345".
std::string with_commas(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first = number < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string rate_text(double rate) {
  return printed(rate > 0 && rate < 1 ? "%.2g steps/s" : "%.1f steps/s", rate);
}

// Returns "50 s", "43 min", "12 h 5 min" or "3 d 4 h".
std::string about(Duration time) {
  const auto s = time / std::chrono::seconds(1);
  if (s < 100) return concat(s, " s");
  if (s < 6000) return concat(s / 60, " min");
  if (s < 48 * 3600) return concat(s / 3600, " h ", s % 3600 / 60, " min");
  return concat(s / 86400, " d ", s % 86400 / 3600, " h");
}

}  // namespace

std::optional<Duration> time_left(const Progress& progress) {
  const auto& [step, total, rate, left] = progress;
  if (!step || !total || !rate || *step >= *total || !(*rate > 0)) return std::nullopt;
  // Programs may report any number, so the difference may not fit in 64 bits.
  const double steps = static_cast<double>(*total) - static_cast<double>(*step);
  const std::chrono::duration<double> time(steps / *rate);
  if (time > kMaxTime) return std::nullopt;
  return std::chrono::duration_cast<Duration>(time);
}

std::string progress_text(const Progress& progress) {
  if (!progress.step) return "";
  std::string text = "step " + with_commas(*progress.step);
  if (progress.total_steps) text += " of " + with_commas(*progress.total_steps);
  if (progress.steps_per_second) text += ", " + rate_text(*progress.steps_per_second);
  if (progress.left) text += ", about " + about(*progress.left) + " left";
  return text;
}

}  // namespace ddprun
