// What every example's main() has in common: options, help, errors in one line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "examples/digits.h"

namespace examples {

// TrainingOptions: the options of every example that trains on digits.
struct TrainingOptions {
  std::string data = shipped_digits();
  std::int64_t epochs = 5;
  std::int64_t batch_size = 32;  // of each worker
  double lr = 0.5;
  std::int64_t seed = 1;

  // The object must live as long as `app` parses.
  void add_to(CLI::App& app);
};

// Parses the command line and calls `body`; with --help it only prints the help. Returns the
// program's exit code: 0; 2 for bad options; 1 if `body` throws. An error is one line on stderr
// that begins with the app's name.
//
// LibTorch gets one thread, unless OMP_NUM_THREADS says otherwise, because the workers of a host
// share its cores. Freed memory stays with the process.
int run(CLI::App& app, int argc, char** argv, const std::function<void()>& body);

}  // namespace examples
