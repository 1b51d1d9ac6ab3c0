// ScopedEnvironment: environment variables of this process while it exists. One thread.
#pragma once

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/worker_env.h"

namespace ddprun {

class ScopedEnvironment {
 public:
  // Unsets all variables of the launcher, then sets `variables`.
  explicit ScopedEnvironment(const std::map<std::string, std::string>& variables) {
    for (const std::string_view name : worker_variables()) unsetenv(std::string(name).c_str());
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(), value.c_str(), 1);
      set_.push_back(name);
    }
  }
  ~ScopedEnvironment() {
    for (const std::string& name : set_) unsetenv(name.c_str());
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  std::vector<std::string> set_;
};

}  // namespace ddprun
