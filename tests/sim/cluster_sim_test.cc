#include "tests/sim/cluster_sim.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace ddprun::sim {
namespace {

std::uint64_t number_from(const char* variable, std::uint64_t fallback) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}

// DDPRUN_SIM_SEED replays one seed with its trace; DDPRUN_SIM_SEEDS sets how many are run.
TEST(ClusterSim, HoldsItsInvariantsAndEndsForEverySeed) {
  const bool replay = std::getenv("DDPRUN_SIM_SEED") != nullptr;
  const std::uint64_t first = number_from("DDPRUN_SIM_SEED", 0);
  const std::uint64_t count = replay ? 1 : number_from("DDPRUN_SIM_SEEDS", 300);
  FaultCounts total;
  int generations = 0;
  int take_overs = 0;
  int well = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const SimResult result = ClusterSim(seed).run();
    ASSERT_EQ(result.violation, "")
        << "seed " << seed << " (replay: DDPRUN_SIM_SEED=" << seed << ")\n"
        << result.trace;
    if (replay) std::cout << result.trace;
    total.worker_crashes += result.faults.worker_crashes;
    total.stubborn_workers += result.faults.stubborn_workers;
    total.agent_kills += result.faults.agent_kills;
    total.cuts += result.faults.cuts;
    total.resets += result.faults.resets;
    total.signals += result.faults.signals;
    total.service_restarts += result.faults.service_restarts;
    total.torn_writes += result.faults.torn_writes;
    total.full_disks += result.faults.full_disks;
    generations += result.generations;
    take_overs += result.take_overs;
    well += result.exit_code == 0 ? 1 : 0;
  }
  std::cout << count << " seeds: " << generations << " generations, " << well
            << " jobs ended well; " << total.worker_crashes << " worker crashes, "
            << total.stubborn_workers << " stubborn workers, " << total.agent_kills
            << " agents killed, " << total.cuts << " cuts, " << total.resets << " resets, "
            << total.signals << " signals, " << total.service_restarts << " services restarted, "
            << total.torn_writes << " torn writes, " << total.full_disks << " full disks, "
            << take_overs << " generations taken over\n";
  if (replay) return;
  for (const int kind : {total.worker_crashes, total.stubborn_workers, total.agent_kills,
                         total.cuts, total.resets, total.signals, total.service_restarts,
                         total.torn_writes, total.full_disks, take_overs, well}) {
    EXPECT_GT(kind, 0) << "a kind of fault, or success, was never seen";
  }
}

}  // namespace
}  // namespace ddprun::sim
