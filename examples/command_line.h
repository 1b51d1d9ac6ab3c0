// What the main() of every example does besides its idea: options, help, errors in one line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "examples/digits.h"

namespace examples {

// The options of every example that trains on digits.
struct TrainingOptions {
  std::string data = shipped_digits();
  std::int64_t epochs = 5;
  std::int64_t batch_size = 32;  // of each worker
  double lr = 0.5;
  std::int64_t seed = 1;

  // The object must live as long as `app` parses.
  void add_to(CLI::App& app);
};

// Parses, and calls `body` unless --help was all that was asked. Returns the program's exit code: 0;
// 2 for bad options; 1 where `body` throws. Errors are one line on stderr that begins with the
// app's name. LibTorch gets one thread, unless OMP_NUM_THREADS says otherwise: the workers of a
// host share its cores. Memory that is freed stays with the process.
int run(CLI::App& app, int argc, char** argv, const std::function<void()>& body);

}  // namespace examples
