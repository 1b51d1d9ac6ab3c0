// Environment variables of this process, for the time of a test. One thread.
#pragma once

#include <cstdlib>
#include <map>
#include <string>

#include "base/worker_env.h"

namespace ddprun {

class ScopedEnvironment {
 public:
  // No variable of a launcher is set but these.
  explicit ScopedEnvironment(const std::map<std::string, std::string>& variables) {
    clear();
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~ScopedEnvironment() { clear(); }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  static void clear() {
    for (const std::string_view name : kWorkerVariables) unsetenv(std::string(name).c_str());
  }
};

}  // namespace ddprun
