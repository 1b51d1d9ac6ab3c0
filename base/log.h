// How ddprun's programs speak of themselves: one line per event, "ddprun: <text>".
//
// A Logger is made by its program and handed to the parts that need one; there is no global. Every
// line goes to one LineSink as a whole, so that in the launcher ddprun's own lines and the workers'
// output cannot cut each other. spdlog does the work, hidden in log.cc: it costs seconds per unit.
//
// A Logger may be called from any thread if its sink may.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/enum_names.h"

namespace ddprun {

// Gets one complete line, with its newline.
using LineSink = std::function<void(std::string_view line)>;

// Writes each line to standard error with one write(2). Any thread.
LineSink stderr_sink();

enum class LogLevel { kDebug, kInfo, kWarning, kError };

inline constexpr EnumNames<LogLevel, 4> kLogLevelWords{{{LogLevel::kDebug, "debug"},
                                                    {LogLevel::kInfo, "info"},
                                                    {LogLevel::kWarning, "warning"},
                                                    {LogLevel::kError, "error"}}};

// Makes the line of a text, with its newline, where it is not to be the one below.
using LineFormat = std::function<std::string(LogLevel level, std::string_view text)>;

class Logger {
 public:
  // Lines begin with "<program>: ", warnings and errors with "<program>: warning: " and so on.
  Logger(const std::string& program, LineSink sink, LineFormat format = {});
  ~Logger();

  // Nothing below is said. Without this: nothing below kInfo.
  void set_level(LogLevel lowest);

  void debug(std::string_view text);
  void info(std::string_view text);
  void warning(std::string_view text);
  void error(std::string_view text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
