// Computes on one core that other processes use, too, for benchmarks/collectives.py. It stands
// for the arithmetic of a training step, which shares the cores with its collectives. Its
// numbers stay in the first-level cache.
//
// Order "start": computes until the next order, and answers with the number of passes per second.
//
// Usage: computing --driver PATH --core N
#include <chrono>
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "benchmarks/round_server.h"

namespace ddprun::benchmarks {
namespace {

// Makes one pass over the numbers. Takes some microseconds.
void compute(std::vector<float>& numbers) {
  for (float& number : numbers) number = number * 0.999f + 0.001f;
}

int benchmark(int argc, char** argv) {
  std::string path;
  int core = 0;
  CLI::App app("Computes on one core, for benchmarks/collectives.py");
  app.add_option("--driver", path, "the driver's Unix socket")->required();
  app.add_option("--core", core, "place among the usable ones");
  CLI11_PARSE(app, argc, argv);

  bind_to_core(core);
  DriverLink driver(path, core);
  std::vector<float> numbers(4096, 1.0f);
  while (!driver.read_line().empty()) {
    driver.write_line("computing");
    const TimePoint begin = BootClock::now();
    double passes = 0;
    for (; !driver.has_line(); passes += 64) {
      for (int i = 0; i < 64; ++i) compute(numbers);
    }
    const Duration taken = BootClock::now() - begin;
    driver.read_line();
    driver.write_line(std::to_string(passes / std::chrono::duration<double>(taken).count()));
  }
  return numbers[0] > 2;  // always false; keeps the compiler from removing the computation
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) { return ddprun::benchmarks::benchmark(argc, argv); }
