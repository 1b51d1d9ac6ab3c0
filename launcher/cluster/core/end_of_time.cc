#include "launcher/cluster/core/end_of_time.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/parse_number.h"
#include "base/split.h"

namespace ddprun {

EndOfTime::Step EndOfTime::step(TimePoint now) {
  if (is_asking_ || is_over_ || now < *next_) return Step::kWait;
  if (is_near(now) && is_sure_) {
    is_over_ = true;
    return Step::kSave;
  }
  is_sure_ = is_near(now);  // also without an answer
  is_asking_ = true;
  return Step::kAsk;
}

void EndOfTime::answered(std::optional<Duration> left, TimePoint now) {
  is_asking_ = false;
  if (left) {
    if (!std::exchange(was_answered_, true)) save_before_ = std::min(save_before_, *left / 2);
    end_ = *left == Duration::max() ? std::nullopt : std::optional(now + *left);
    is_sure_ = is_near(now);
  }
  if (!end_) {
    next_ = now + (left ? kLongestPause : kRetryPause);
  } else {
    const Duration until = std::max(Duration::zero(), *end_ - save_before_ - now);
    next_ = now + std::min(until, std::clamp<Duration>(until / 2, kShortestPause, kLongestPause));
  }
}

std::optional<Duration> parse_time_left(std::string_view text) {
  if (text == "UNLIMITED") return Duration::max();
  if (text == "INVALID") return Duration::zero();
  std::int64_t days = 0;
  if (const std::size_t dash = text.find('-'); dash != text.npos) {
    const std::optional<std::int64_t> number = parse_number<std::int64_t>(text.substr(0, dash));
    if (!number || *number < 0 || *number > 10'000) return std::nullopt;
    days = *number;
    text.remove_prefix(dash + 1);
  }
  std::int64_t seconds = 0;
  const auto parts = split(text, ':');
  if (parts.size() < 2 || parts.size() > 3) return std::nullopt;
  for (const std::string_view part : parts) {
    const std::optional<std::int64_t> number = parse_number<std::int64_t>(part);
    if (!number || *number < 0 || *number > 10'000) return std::nullopt;
    seconds = seconds * 60 + *number;
  }
  return std::chrono::hours(24) * days + std::chrono::seconds(seconds);
}

}  // namespace ddprun
