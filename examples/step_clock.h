// StepClock: measures where the time of a training's steps goes (--breakdown), in the form that
// benchmarks/training.py reads. It is for CPUs: it does not wait for work that runs on a GPU. One
// thread.
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace examples {

class StepClock {
 public:
  // Begins a step.
  void begin() {
    ++steps_;
    last_ = Clock::now();
  }
  // Ends a phase of the step: it has run since begin(), or since the last end().
  void end(const std::string& phase) {
    const Clock::time_point now = Clock::now();
    ms_[phase] += std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
  }

  // Returns the milliseconds of a phase in the mean step. REQUIRES: the phase was measured.
  double ms(const std::string& phase) const { return ms_.at(phase) / steps_; }
  // Returns the milliseconds of each phase in the mean step.
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
