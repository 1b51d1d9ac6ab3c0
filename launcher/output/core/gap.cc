#include "launcher/output/core/gap.h"

#include <algorithm>

namespace ddprun {

std::string OutputGap::text() const { return std::to_string(missing_) + " bytes are missing"; }

std::string OutputGap::loss() const {
  return missing_ > 0 ? name_ + ": " + text() + ": " + why_ : "";
}

void OutputGap::open(const std::string& why, TimePoint now) {
  retry_at_ = now + retry_after_;
  is_unseen_ = false;
  retry_after_ = std::min(2 * retry_after_, kLongestRetry);
  if (std::exchange(is_open_, true)) return;
  why_ = why;
  news_.push_back(name_ + ": " + why +
                  "; output to it is dropped until this is over, workers continue");
}

void OutputGap::drop(std::string_view bytes) {
  if (bytes.empty()) return;
  missing_ += bytes.size();
  mid_line_ = bytes.back() != '\n';
}

void OutputGap::drop_unseen(std::uint64_t count) {
  missing_ += count;
  mid_line_ = true;
  is_unseen_ = true;
}

std::string_view OutputGap::writable(std::string_view bytes, TimePoint now) {
  if (is_open_ && !is_unseen_ && now < retry_at_) {
    drop(bytes);
    return {};
  }
  if (!mid_line_) return bytes;
  // The beginning of that line is lost, so its end is dropped, too.
  const std::size_t newline = bytes.find('\n');
  const std::size_t length = newline == std::string_view::npos ? bytes.size() : newline + 1;
  drop(bytes.substr(0, length));
  return bytes.substr(length);
}

std::optional<TimePoint> OutputGap::retry_due() const {
  return is_open_ ? std::optional(retry_at_) : std::nullopt;
}

// Keeps the time between retries as long as it has become. Otherwise a disk that has room only
// now and then would cause a warning every second.
void OutputGap::close() {
  if (is_open_ && missing_ > 0) news_.push_back(name_ + " is written again; " + text());
  is_open_ = false;
  missing_ = 0;
}

}  // namespace ddprun
