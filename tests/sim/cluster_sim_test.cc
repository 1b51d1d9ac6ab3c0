#include "tests/sim/cluster_sim.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iomanip>
#include <iostream>

#include "tests/support/test_seed.h"

namespace ddprun::sim {
namespace {

// Returns one # for each doubling.
std::string bar(int count) {
  std::string text;
  for (; count > 0; count /= 2) text += '#';
  return text;
}

// DDPRUN_SIM_SEED replays one seed and prints its trace. DDPRUN_SIM_SEEDS sets the number of
// seeds.
TEST(ClusterSim, HoldsItsInvariantsAndEndsForEverySeed) {
  const bool replay = std::getenv("DDPRUN_SIM_SEED") != nullptr;
  const std::uint64_t first = testing_support::number_from("DDPRUN_SIM_SEED", 0);
  const std::uint64_t count = replay ? 1 : testing_support::number_from("DDPRUN_SIM_SEEDS", 300);
  Happenings total;
  int generations = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const SimResult result = ClusterSim(seed).run();
    ASSERT_EQ(result.violation, "")
        << "seed " << seed << " (replay: DDPRUN_SIM_SEED=" << seed << ")\n"
        << result.trace;
    if (replay) std::cout << result.trace;
    total += result.seen;
    generations += result.generations;
  }
  std::cout << count << " seeds, " << generations << " generations\n";
  for (const auto& [what, name] : kHappenings) {
    std::cout << std::setw(9) << total[what] << "  " << std::left << std::setw(46) << name
              << std::right << bar(total[what]) << "\n";
    EXPECT_TRUE(replay || total[what] > 0) << "not once in all seeds: " << name;
  }
}

}  // namespace
}  // namespace ddprun::sim
