// Computes on one core while others use it, for benchmarks/collectives.py: a training step's arithmetic,
// which shares the cores with its collectives. Numbers that stay in the first-level cache.
//
// Order "start": computes until the next order, and answers with how many passes it made a second.
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

// Some microseconds.
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
  return numbers[0] > 2;  // never; the numbers are of use to somebody
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) { return ddprun::benchmarks::benchmark(argc, argv); }
