// LimitedLog: limits log lines that unauthenticated peers can cause, by a LineBudget. One owner
// thread; the Logger, or what the function uses, must outlive it.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "base/log.h"
#include "rendezvous/net/core/line_budget.h"

namespace ddprun {

class LimitedLog {
 public:
  using Say = std::function<void(LogLevel level, const std::string& text)>;

  LimitedLog(Say say, int lines, Duration period) : say_(std::move(say)), budget_(lines, period) {}
  LimitedLog(Logger& log, int lines, Duration period)
      : LimitedLog(
            [&log](LogLevel level, const std::string& text) {
              level == LogLevel::kError ? log.error(text) : log.warning(text);
            },
            lines, period) {}

  void warning(const std::string& text) { write(LogLevel::kWarning, text); }
  void error(const std::string& text) { write(LogLevel::kError, text); }

 private:
  void write(LogLevel level, const std::string& text) {
    const auto held_back = budget_.admit(BootClock::now());
    if (!held_back) return;
    const std::string more =
        *held_back > 0 ? " (" + std::to_string(*held_back) + " such lines were held back)" : "";
    say_(level, text + more);
  }

  Say say_;
  LineBudget budget_;
};

}  // namespace ddprun
