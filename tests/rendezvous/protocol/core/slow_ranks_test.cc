// Tests SlowRanks with simulated steps. The times are drawn from recorded ones
// (tests/data/step-times.txt).
#include "rendezvous/protocol/core/slow_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/recorded_steps.h"
#include "tests/support/sanitized.h"
#include "tests/support/whole.h"

namespace ddprun {
namespace {

// A job. The time of each rank in each step is one of the recorded times. Core: SlowRanks, or a
// mutant with its functions.
template <class Core = SlowRanks>
class Job {
 public:
  Job(const std::string& load, int ranks, std::uint64_t seed, int ranks_on_a_node = 1 << 20)
      : times_(load, seed), factors(ranks, 1.0), core(nodes(ranks, ranks_on_a_node)) {}

  void step() {
    std::vector<Duration> own;
    for (const double factor : factors) {
      own.emplace_back(static_cast<Duration::rep>(times_.draw_ns() * factor));
    }
    const Duration communication(static_cast<Duration::rep>(times_.first_ns() / 50));
    core.take(*std::ranges::max_element(own) + communication, own);
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  // Does steps until it is so. Returns how many; most + 1: it never was.
  template <class Condition>
  int steps_until(int most, Condition condition) {
    for (int i = 1; i <= most; ++i) {
      step();
      if (condition(core.findings())) return i;
    }
    return most + 1;
  }

 private:
  static std::vector<int> nodes(int ranks, int ranks_on_a_node) {
    std::vector<int> nodes;
    for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / ranks_on_a_node);
    return nodes;
  }
  testing_support::RecordedSteps times_;

 public:
  std::vector<double> factors;  // by rank: how much longer it takes
  Core core;
};

using Findings = std::vector<SlowFinding>;
bool names_only(const Findings& findings, const std::vector<std::vector<int>>& ranks) {
  std::vector<std::vector<int>> named;
  for (const SlowFinding& one : findings) named.push_back(one.ranks);
  return named == ranks;
}
bool none(const Findings& findings) { return findings.empty(); }

const int kTries = testing_support::rounds(100);
constexpr int kWarmUp = 64;

// Returns in how many of the tries a rank that is 10 % slow is named, alone, within `most` steps.
template <class Core = SlowRanks>
int named_in_time(const std::string& load, int ranks, int most, int ranks_on_a_node = 1 << 20) {
  int named = 0;
  for (int i = 0; i < kTries; ++i) {
    Job<Core> job(load, ranks, 1000 + static_cast<std::uint64_t>(i), ranks_on_a_node);
    job.steps(kWarmUp);
    const int slow = i % ranks;
    job.factors[static_cast<std::size_t>(slow)] = 1.1;
    named += job.steps_until(most, [&](const Findings& findings) {
      return names_only(findings, {{slow}});
    }) <= most;
  }
  return named;
}

// Returns after how many steps equal ranks raise a false alarm; most + 1: they never do.
template <class Core = SlowRanks>
int until_false_alarm(const std::string& load, int ranks, int most, int ranks_on_a_node = 1 << 20) {
  Job<Core> job(load, ranks, 7, ranks_on_a_node);
  return job.steps_until(most, [](const Findings& findings) { return !findings.empty(); });
}

// Takes a rank for slow whose mean of the last steps is longer, whatever the noise.
class NotRobust {
 public:
  explicit NotRobust(std::vector<int> node_of) : means_(node_of.size()) {}
  void take(Duration, std::span<const Duration> own) {
    double all = 0;
    for (std::size_t rank = 0; rank < own.size(); ++rank) {
      const auto time = static_cast<double>(own[rank].count());
      means_[rank] = means_[rank] == 0 ? time : means_[rank] + (time - means_[rank]) / 10;
      all += means_[rank] / static_cast<double>(own.size());
    }
    findings_.clear();
    for (std::size_t rank = 0; rank < own.size(); ++rank) {
      if (means_[rank] > 1.05 * all) findings_.push_back({.ranks = {static_cast<int>(rank)}});
    }
  }
  const Findings& findings() const { return findings_; }

 private:
  std::vector<double> means_;
  Findings findings_;
};

TEST(SlowRanks, ARankThatIsTenPercentSlowIsNamedWithin20Steps) {
  for (const int ranks : {2, 8, 64, 1000}) {
    EXPECT_GE(named_in_time("quiet", ranks, 20), kTries * 99 / 100) << ranks << " ranks";
  }
}

// No test could do it within 20 steps here. One that knows the distribution of these times, and
// sums up the logarithms of the likelihood ratios, takes up to 29 steps in 99 of 100 tries with 8
// ranks (20 in 82), if it may raise one false alarm in 10^7 steps.
TEST(SlowRanks, OnALoadedMachineItTakesMoreSteps) {
  for (const int ranks : {2, 8, 64}) {
    const int most = ranks == 2 ? 400 : 150;
    EXPECT_GE(named_in_time("loaded", ranks, most), kTries * 99 / 100) << ranks << " ranks";
  }
}

TEST(SlowRanks, EqualRanksRaiseNoFalseAlarmIn100000Steps) {
  for (const char* load : {"quiet", "loaded"}) {
    for (const int ranks : {2, 8, 64, 1000}) {
      const int most = testing_support::is_whole()
                           ? 100'000
                           : std::min(100'000, testing_support::rounds(2'000'000) / ranks);
      EXPECT_EQ(until_false_alarm(load, ranks, most), most + 1)
          << load << ", " << ranks << " ranks";
    }
  }
}

// Ranks of several nodes, by the ranks of a node.
constexpr struct {
  int ranks;
  int on_a_node;
} kSeveralNodes[] = {{2, 1}, {4, 2}, {8, 1}, {16, 8}, {64, 8}, {1000, 8}};

TEST(SlowRanks, ARankOfAnotherNodeIsNamedWithin20Steps) {
  for (const auto& [ranks, on_a_node] : kSeveralNodes) {
    // Of two nodes with two ranks each, only two ranks show how fast the others are.
    const int most = on_a_node == 2 ? 40 : 20;
    EXPECT_GE(named_in_time("quiet", ranks, most, on_a_node), kTries * 99 / 100)
        << ranks << " ranks, " << on_a_node << " on a node";
  }
}

TEST(SlowRanks, OnLoadedNodesItTakesMoreSteps) {
  for (const auto& [ranks, on_a_node] : kSeveralNodes) {
    const int most = ranks <= 4 ? 400 : 150;
    EXPECT_GE(named_in_time("loaded", ranks, most, on_a_node), kTries * 99 / 100)
        << ranks << " ranks, " << on_a_node << " on a node";
  }
}

TEST(SlowRanks, EqualRanksOfSeveralNodesRaiseNoFalseAlarmIn100000Steps) {
  for (const char* load : {"quiet", "loaded"}) {
    for (const auto& [ranks, on_a_node] : kSeveralNodes) {
      const int most = testing_support::is_whole()
                           ? 100'000
                           : std::min(100'000, testing_support::rounds(2'000'000) / ranks);
      EXPECT_EQ(until_false_alarm(load, ranks, most, on_a_node), most + 1)
          << load << ", " << ranks << " ranks, " << on_a_node << " on a node";
    }
  }
}

TEST(SlowRanks, WithoutRobustnessTheseTestsFail) {
  EXPECT_LT(until_false_alarm<NotRobust>("loaded", 8, 10'000), 10'000);
}

TEST(SlowRanks, ARankThatIsSlowFromTheBeginningIsNamed) {
  for (const int ranks : {2, 8, 64}) {
    Job<> job("quiet", ranks, 3);
    job.factors[1] = 1.1;
    EXPECT_LE(job.steps_until(40, [](const Findings& found) { return names_only(found, {{1}}); }),
              40)
        << ranks << " ranks";
  }
}

TEST(SlowRanks, ARankThatHasRecoveredIsNotNamedAnyMore) {
  for (const char* load : {"quiet", "loaded"}) {
    const int most = *load == 'q' ? 20 : 150;
    Job<> job(load, 8, 4);
    job.steps(kWarmUp);
    job.factors[5] = 1.1;
    ASSERT_LE(job.steps_until(most, [](const Findings& found) { return names_only(found, {{5}}); }),
              most);
    job.factors[5] = 1.0;
    EXPECT_LE(job.steps_until(most, none), most) << load;
    EXPECT_EQ(job.steps_until(1000, [](const Findings& found) { return !found.empty(); }), 1001);
  }
}

TEST(SlowRanks, TheShareIsWhatTheOthersWait) {
  Job<> job("quiet", 8, 5);
  job.steps(kWarmUp);
  job.factors[2] = 1.2;
  job.steps(40);
  ASSERT_TRUE(names_only(job.core.findings(), {{2}}));
  EXPECT_NEAR(job.core.findings()[0].share, 0.2, 0.02);
}

TEST(SlowRanks, TwoSlowRanksAreBothNamed) {
  Job<> job("quiet", 8, 6);
  job.steps(kWarmUp);
  job.factors[0] = 1.1;
  job.factors[6] = 1.3;
  EXPECT_LE(job.steps_until(30,
                            [](const Findings& found) {
                              return names_only(found, {{0}, {6}});
                            }),
            30);
}

TEST(SlowRanks, ASlowNodeIsNamedAsANode) {
  for (const int nodes : {2, 8}) {
    Job<> job("quiet", 8 * nodes, 8, /*ranks_on_a_node=*/8);
    job.steps(kWarmUp);
    for (int rank = 8; rank < 16; ++rank) job.factors[static_cast<std::size_t>(rank)] = 1.1;
    job.steps(40);
    const Findings findings = job.core.findings();
    ASSERT_TRUE(names_only(findings, {{8, 9, 10, 11, 12, 13, 14, 15}})) << nodes;
    EXPECT_EQ(findings[0].node, 1);
    for (int rank = 8; rank < 15; ++rank) job.factors[static_cast<std::size_t>(rank)] = 1.0;
    job.steps(100);
    EXPECT_TRUE(names_only(job.core.findings(), {{15}})) << "only this one is still slow";
  }
}

TEST(SlowRanks, ALongStepNowAndThenIsNotSlow) {
  Job<> job("quiet", 4, 9);
  for (int i = 0; i < 1000; ++i) {
    job.factors[0] = i % 5 == 0 ? 8.0 : 1.0;  // it saves a checkpoint
    job.step();
    ASSERT_TRUE(none(job.core.findings())) << "step " << i;
  }
}

// Communication takes most of the step, so a little more work costs the job almost nothing.
TEST(SlowRanks, WhatCostsTheOthersLittleIsNotSlow) {
  SlowRanks ranks({0, 0, 0});
  using std::chrono::milliseconds;
  const std::vector<Duration> own{milliseconds(100), milliseconds(100), milliseconds(120)};
  for (int i = 0; i < 200; ++i) ranks.take(milliseconds(1000), own);
  EXPECT_TRUE(ranks.findings().empty());
  for (int i = 0; i < 200; ++i) ranks.take(milliseconds(130), own);
  EXPECT_TRUE(names_only(ranks.findings(), {{2}}));
}

TEST(SlowRanks, FindsNothingWithoutAnythingToCompare) {
  SlowRanks one({0});
  one.take(Duration(1000), std::vector<Duration>{Duration(900)});
  EXPECT_TRUE(one.findings().empty());
  SlowRanks two({0, 0});
  for (int i = 0; i < 100; ++i) two.take(Duration(0), std::vector<Duration>(2));
  EXPECT_TRUE(two.findings().empty());
  EXPECT_EQ(two.weight(), 0);
}

TEST(SlowRanks, TheTextNamesTheRankOrTheNode) {
  SlowFinding rank{.ranks = {3}, .node = std::nullopt, .share = 0.123};
  EXPECT_EQ(slow_text(rank, ""), "rank 3 is slow: the others wait 12 % of each step");
  EXPECT_EQ(slow_text(rank, "n2"), "rank 3 (node n2) is slow: the others wait 12 % of each step");
  SlowFinding node{.ranks = {8, 9, 10}, .node = 1, .share = 0.3};
  EXPECT_EQ(slow_text(node, "n2"),
            "node n2 (ranks 8-10) is slow: the others wait 30 % of each step");
  EXPECT_EQ(recovered_text(rank, "n2"), "rank 3 (node n2) is as fast as the others again");
  EXPECT_EQ(recovered_text(node, "n2"), "node n2 (ranks 8-10) is as fast as the others again");
}

}  // namespace
}  // namespace ddprun
