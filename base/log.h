// Logger: the log of ddprun's programs, one line per event: "ddprun: <text>".
//
// A program makes its Logger and passes it to the parts that need it. There is no global one.
// Each line goes to one LineSink as a whole. In the launcher, ddprun's own lines and the
// workers' output therefore cannot cut each other.
//
// A Logger may be called from any thread if its sink may.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "base/enum_names.h"

namespace ddprun {

// LineSink: gets one complete line, with its newline.
using LineSink = std::function<void(std::string_view line)>;

// Returns a sink that writes each line to standard error with one write(2). Any thread.
LineSink stderr_sink();

enum class LogLevel { kDebug, kInfo, kWarning, kError };

inline constexpr EnumNames<LogLevel, 4> kLogLevelWords{{{LogLevel::kDebug, "debug"},
                                                        {LogLevel::kInfo, "info"},
                                                        {LogLevel::kWarning, "warning"},
                                                        {LogLevel::kError, "error"}}};

// LineFormat: makes the line of a text, with its newline, if the format below should not be
// used.
using LineFormat = std::function<std::string(LogLevel level, std::string_view text)>;

class Logger {
 public:
  // Makes a log. Its lines begin with "<program>: ", warnings and errors with "<program>: warning:
  // " and so on. format: replaces this form, unless it is empty.
  Logger(const std::string& program, LineSink sink, LineFormat format = {});

  // Drops lines below `lowest`. By default, lines below kInfo are dropped.
  void set_level(LogLevel lowest) { lowest_ = lowest; }

  void debug(std::string_view text) { log(LogLevel::kDebug, text); }
  void info(std::string_view text) { log(LogLevel::kInfo, text); }
  void warning(std::string_view text) { log(LogLevel::kWarning, text); }
  void error(std::string_view text) { log(LogLevel::kError, text); }

 private:
  void log(LogLevel level, std::string_view text);

  LineSink sink_;
  LineFormat format_;
  std::atomic<LogLevel> lowest_ = LogLevel::kInfo;
};

}  // namespace ddprun
