#include "base/seconds.h"

#include <array>
#include <charconv>

#include "base/parse_number.h"

namespace ddprun {
namespace {

using DoubleSeconds = std::chrono::duration<double>;

}  // namespace

Result<Duration> parse_seconds(std::string_view text) {
  const std::optional<double> seconds = parse_number<double>(text);
  if (!seconds || !(*seconds >= 0) || *seconds > DoubleSeconds(kMaxTime).count()) {
    return invalid_value(text, "expected seconds, such as 30 or 0.5");
  }
  return std::chrono::duration_cast<Duration>(DoubleSeconds(*seconds));
}

std::string in_seconds(Duration duration) {
  std::array<char, 32> text;
  const double value = DoubleSeconds(duration).count();
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

}  // namespace ddprun
