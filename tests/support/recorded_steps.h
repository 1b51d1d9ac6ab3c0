// RecordedSteps: draws times of steps from the recorded ones (tests/data/step-times.txt).
#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/rng.h"

namespace ddprun::testing_support {

class RecordedSteps {
 public:
  // load: "quiet" or "loaded", as the lines of the file begin.
  RecordedSteps(const std::string& load, std::uint64_t seed) : rng_(seed) {
    std::ifstream file(DDPRUN_SOURCE_DIR "/tests/data/step-times.txt");
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name;
      words >> name;
      if (name != load) continue;
      for (double ms = 0; words >> ms;) times_ns_.push_back(ms * 1e6);
    }
  }

  double draw_ns() { return times_ns_[rng_.below(times_ns_.size())]; }
  double first_ns() const { return times_ns_[0]; }

 private:
  std::vector<double> times_ns_;
  Rng rng_;
};

}  // namespace ddprun::testing_support
