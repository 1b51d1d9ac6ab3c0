// Where the time of a training's steps goes (--breakdown), as benchmarks/training.py reads it. On CPUs:
// what is launched on a GPU is not waited for. One thread.
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace examples {

class StepClock {
 public:
  // A step begins now.
  void begin() {
    ++steps_;
    last_ = Clock::now();
  }
  // What was done since begin(), or since the last end(), was this phase of the step.
  void end(const std::string& phase) {
    const Clock::time_point now = Clock::now();
    ms_[phase] += std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
  }

  // Of a phase in the mean step. The phase must be there.
  double ms(const std::string& phase) const { return ms_.at(phase) / steps_; }
  // By phase.
  nlohmann::json breakdown_ms() const {
    nlohmann::json all;
    for (const auto& [phase, sum] : ms_) all[phase] = ms(phase);
    return all;
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point last_;
  double steps_ = 0;
  std::map<std::string, double> ms_;
};

}  // namespace examples
