// Measures what the search for slow ranks costs, in nanoseconds of one core:
//
//   slow_ranks
//
// - a worker, per step: its report, and two waits in calls;
// - the agent, per look (one every 10 s): 8 workers, each with 64 new steps.
// Medians of rounds are printed as a line of JSON.
#include <cstdio>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/worker_page_file.h"
#include "benchmarks/give_up.h"
#include "benchmarks/statistics.h"
#include "launcher/hang/core/slow_watch.h"
#include "worker_lib/flight/worker_reporter.h"

namespace ddprun::benchmarks {
namespace {

constexpr int kRounds = 15;
constexpr std::size_t kWorkers = 8;

// Returns the nanoseconds of one call.
template <class Body>
double ns_of(int calls, Body body) {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const TimePoint begun = BootClock::now();
    for (int i = 0; i < calls; ++i) body();
    rounds.push_back(static_cast<double>((BootClock::now() - begun).count()) / calls);
  }
  return percentile(rounds, 0.5);
}

int benchmark() {
  const PageFile pages = need(make_page_file("pages", 1));
  WorkerEnv env;
  env.page_file = "/proc/self/fd/" + std::to_string(pages.file.get());
  const auto reporter = WorkerReporter::open(env);
  std::int64_t step = 0;
  const double report = ns_of(100'000, [&] { reporter->report_step(++step); });
  const double wait = ns_of(100'000, [&] { const BlockedTime blocked(reporter.get()); });

  std::vector<std::vector<StepEntry>> marks(kWorkers);
  SlowWatch watch;
  watch.begin(Rank(0), kWorkers, "");
  std::uint64_t number = 0;
  const double look = ns_of(100, [&] {
    for (std::vector<StepEntry>& of_one : marks) {
      of_one.clear();
      for (std::uint64_t i = 1; i <= kStepMarks; ++i) {
        of_one.push_back({.number = number + i,
                          .step = static_cast<std::int64_t>(number + i),
                          .ns = (number + i) * 10'000'000});
      }
    }
    number += kStepMarks;
    watch.look(marks);
  });
  std::printf(
      "{\"worker_ns_per_step\": %.0f, \"report_ns\": %.0f, \"wait_ns\": %.0f, "
      "\"agent_ns_per_look\": %.0f}\n",
      report + 2 * wait, report, wait, look);
  return 0;
}

}  // namespace
}  // namespace ddprun::benchmarks

int main() { return ddprun::benchmarks::benchmark(); }
