#include "tests/sim/leadership_sim.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iomanip>
#include <iostream>

#include "tests/support/test_seed.h"

namespace ddprun::sim {
namespace {

// DDPRUN_SIM_SEED replays one seed and prints its trace. DDPRUN_SIM_SEEDS sets the number of
// seeds.
TEST(LeadershipSim, HoldsItsInvariantsForEverySeed) {
  const bool replay = std::getenv("DDPRUN_SIM_SEED") != nullptr;
  const std::uint64_t first = testing_support::number_from("DDPRUN_SIM_SEED", 0);
  const std::uint64_t count = replay ? 1 : testing_support::number_from("DDPRUN_SIM_SEEDS", 300);
  Counts<LeadershipFault, kLeadershipFaults.size()> seen;
  int terms = 0;
  int decisions = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const LeadershipResult result = LeadershipSim(seed).run();
    ASSERT_EQ(result.violation, "")
        << "seed " << seed << " (replay: DDPRUN_SIM_SEED=" << seed << ")\n"
        << result.trace;
    if (replay) std::cout << result.trace;
    seen += result.seen;
    terms += result.terms;
    decisions += result.decisions;
  }
  std::cout << count << " seeds, " << terms << " terms, " << decisions << " decisions\n";
  for (const auto& [what, name] : kLeadershipFaults) {
    const int times = seen[what];
    std::cout << std::setw(9) << times << "  " << name << "\n";
    EXPECT_TRUE(replay || times > 0) << "not once in all seeds: " << name;
  }
}

class FindsMutant : public testing::TestWithParam<Mutant> {};

TEST_P(FindsMutant, WithinAFewSeeds) {
  std::uint64_t seed = 0;
  while (seed < 300 && LeadershipSim(seed, GetParam()).run().violation.empty()) ++seed;
  EXPECT_LT(seed, 300u) << "no seed has found the mistake";
  std::cout << "found by seed " << seed << "\n";
}

INSTANTIATE_TEST_SUITE_P(LeadershipSim, FindsMutant,
                         testing::Values(Mutant::kNoFence, Mutant::kNoChain, Mutant::kWrongClock,
                                         Mutant::kPartlyRead));

}  // namespace
}  // namespace ddprun::sim
