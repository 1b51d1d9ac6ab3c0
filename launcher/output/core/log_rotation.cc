#include "launcher/output/core/log_rotation.h"

#include <algorithm>

namespace ddprun {
namespace {

// Returns the length up to the end of the last whole line.
std::size_t whole_lines(std::string_view bytes) {
  const std::size_t last = bytes.rfind('\n');
  return last == std::string_view::npos ? 0 : last + 1;
}

}  // namespace

LogRotation::Step LogRotation::next(std::string_view bytes, bool is_end) const {
  if (max_bytes_ == 0 || bytes.empty()) return {.write = bytes.size()};
  const std::uint64_t room = max_bytes_ - std::min(size_, max_bytes_);
  const std::string_view fitting =
      bytes.substr(0, static_cast<std::size_t>(std::min<std::uint64_t>(room, bytes.size())));
  if (is_end && fitting.size() == bytes.size()) return {.write = bytes.size()};
  if (const std::size_t lines = whole_lines(fitting); lines > 0) return {.write = lines};
  // The first line does not fit, or has not ended.
  const std::size_t end = bytes.find('\n');
  const bool goes_on = end == std::string_view::npos && !is_end;
  const std::uint64_t held = std::min<std::uint64_t>(max_bytes_, kMostHeld);
  if (goes_on && at_line_start_ && bytes.size() < held) return {};
  const std::size_t length = end == std::string_view::npos ? bytes.size() : end + 1;
  if (length <= room) return {.write = length};
  if (room == 0 || (size_ > 0 && at_line_start_)) return {.rotate = true};
  return {.write = fitting.size()};
}

void LogRotation::wrote(std::string_view bytes) {
  if (bytes.empty()) return;
  size_ += bytes.size();
  at_line_start_ = bytes.back() == '\n';
}

void LogRotation::rotated() { size_ = 0; }

}  // namespace ddprun
