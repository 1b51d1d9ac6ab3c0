// LimitedLog: lines that strangers can provoke, as many of them as LineBudget admits. One owner
// thread; the Logger outlives it.
#pragma once

#include <string>

#include "base/log.h"
#include "rendezvous/core/line_budget.h"

namespace ddprun {

class LimitedLog {
 public:
  LimitedLog(Logger& log, int lines, Duration period) : log_(log), budget_(lines, period) {}

  void warning(const std::string& text) { write(&Logger::warning, text); }
  void error(const std::string& text) { write(&Logger::error, text); }

 private:
  void write(void (Logger::*level)(std::string_view), const std::string& text) {
    const auto held_back = budget_.admit(BootClock::now());
    if (!held_back) return;
    const std::string more =
        *held_back > 0 ? " (" + std::to_string(*held_back) + " such lines were held back)" : "";
    (log_.*level)(text + more);
  }

  Logger& log_;
  LineBudget budget_;
};

}  // namespace ddprun
