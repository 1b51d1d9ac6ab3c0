#include "base/log.h"

#include <unistd.h>

#include "base/terminal_text.h"

namespace ddprun {
namespace {

// Returns "ddprun: text" for information, and "ddprun: warning: text" or "ddprun: error: text"
// above it. The text becomes one line, whatever its source (terminal_line()); tabs and colours
// stay.
std::string line_of(const std::string& program, LogLevel level, std::string_view text) {
  std::string line = program + ": ";
  if (level == LogLevel::kWarning) line += "warning: ";
  if (level == LogLevel::kError) line += "error: ";
  return line + terminal_line(text) + "\n";
}

}  // namespace

Logger::Logger(const std::string& program, LineSink sink, LineFormat format)
    : sink_(std::move(sink)), format_(std::move(format)) {
  if (format_) return;
  format_ = [program](LogLevel level, std::string_view text) {
    return line_of(program, level, text);
  };
}

void Logger::log(LogLevel level, std::string_view text) {
  if (level >= lowest_) sink_(format_(level, text));
}

LineSink stderr_sink() {
  return [](std::string_view line) {
    // One write keeps the line whole. If stderr is closed or full, the error is ignored.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  };
}

}  // namespace ddprun
