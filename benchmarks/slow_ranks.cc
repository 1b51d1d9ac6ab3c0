// Measures what the search for slow ranks costs, in nanoseconds of one core:
//
//   slow_ranks
//
// - a worker, per step: its report, and two waits in calls;
// - the agent, per round (one every 5 s): 8 workers, each with 64 new steps;
// - the service, per round: the reports of 1, and of 128, such nodes.
// Medians of rounds are printed as a line of JSON.
#include <cstdio>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/worker_page_file.h"
#include "benchmarks/give_up.h"
#include "benchmarks/statistics.h"
#include "launcher/hang/core/step_collector.h"
#include "rendezvous/accounts/core/slow_search.h"
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

// Returns the cost of a round for a service whose nodes all report these steps.
double search_ns(int nodes, std::vector<StepTimes> steps) {
  std::vector<SlowSearch::Node> all;
  for (int node = 0; node < nodes; ++node) {
    all.push_back({std::to_string(node), "host", static_cast<int>(kWorkers)});
  }
  SlowSearch search;
  TimePoint now;
  search.begin(Generation(0), all, now);
  return ns_of(5, [&] {
    now = *search.deadline();
    const auto most =
        static_cast<std::size_t>(std::get<StepsDirective>(search.tick(now)[0].message).steps);
    if (steps.size() > most) steps.resize(most);
    for (StepTimes& one : steps) one.step += kStepMarks;
    for (const SlowSearch::Node& node : all) {
      search.take(node.agent_id, {.generation = Generation(0), .steps = steps});
    }
  });
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
  StepCollector collector;
  std::uint64_t number = 0;
  std::vector<StepTimes> steps;
  const double collect = ns_of(100, [&] {
    for (std::vector<StepEntry>& of_one : marks) {
      of_one.clear();
      for (std::uint64_t i = 1; i <= kStepMarks; ++i) {
        of_one.push_back({.number = number + i,
                          .step = static_cast<std::int64_t>(number + i),
                          .ns = (number + i) * 10'000'000});
      }
    }
    number += kStepMarks;
    steps = collector.take(marks, kMaxReportedSteps);
  });
  std::printf(
      "{\"worker_ns_per_step\": %.0f, \"report_ns\": %.0f, \"wait_ns\": %.0f, "
      "\"agent_ns_per_round\": %.0f, \"service_ns_per_round\": %.0f, "
      "\"service_ns_per_round_of_128_nodes\": %.0f}\n",
      report + 2 * wait, report, wait, collect, search_ns(1, steps), search_ns(128, steps));
  return 0;
}

}  // namespace
}  // namespace ddprun::benchmarks

int main() { return ddprun::benchmarks::benchmark(); }
