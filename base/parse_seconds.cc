#include "base/parse_seconds.h"

#include "base/parse_number.h"

namespace ddprun {

Result<Duration> parse_seconds(std::string_view text) {
  const std::optional<double> seconds = parse_number<double>(text);
  if (!seconds || !(*seconds >= 0) || *seconds > 1e9) {
    return invalid_argument("'" + std::string(text) + "' is no number of seconds");
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*seconds));
}

}  // namespace ddprun
