// SlowRanks: finds the ranks that make the others wait in each step.
//
// Input: for each step, the time in which a rank did not wait for others (its own time). A step
// takes as long as the own time of the slowest rank, and the communication. The excess of a rank is
// its own time beyond the median of the other ranks. It is a share of an even step, in which the
// slowest rank would need the median time. In jobs of several nodes the median is that of the
// medians of the other nodes. So a rank on a slow node is not compared with its neighbours. Up to
// half of the ranks, or of the nodes, may be slow.
//
// The score of a step is clamp(2 * excess / kSlow - 1, -1, 1): -1 for an equal rank, 0 for half of
// kSlow, 1 for kSlow and more. One long step (a checkpoint, a page fault, a process that was
// stopped) thus counts as little as any other. This is the likelihood ratio of Laplace's
// distribution, for which a median is the best estimate.
//
// States of a rank: not slow -> slow when its evidence reaches needed(); slow -> not slow when its
// evidence is 0 again. In each step the evidence grows by weight() * score, between 0 and needed().
// This is Page's cumulative sum test (E. S. Page, Continuous inspection schemes, Biometrika 41,
// 1954).
//
// The bound on false alarms. The weight is the largest one, up to kMostWeight, for which equal
// ranks have mean(exp(weight * score)) <= 1. Then exp(evidence since it was 0) is a
// supermartingale. By Ville's inequality it reaches exp(needed()) with probability exp(-needed())
// at most. needed() is log(ranks * 10^5 / 0.01): at most 0.01 false alarms of all ranks in 100,000
// steps.
//
// How equal ranks vary is learned from the excess of all ranks, each less its own median of the 16
// steps around it. A rank that is always slow varies like an equal one, so no clean reference is
// needed. The more the excess varies, the smaller is the weight: noise makes the test slower, not
// less reliable. The bound needs noise that is independent from step to step. A rank that shares
// its core with another program for ten seconds is slow for ten seconds.
//
// Owner: SlowSearch in the service. Pure; time comes in with each step. Any one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace ddprun {

struct SlowFinding {
  std::vector<int> ranks;   // ascending
  std::optional<int> node;  // if these are all the ranks of a node, and at least two
  double share = 0;         // the excess: the median of the last steps

  friend bool operator==(const SlowFinding&, const SlowFinding&) = default;
};

class SlowRanks {
 public:
  // An excess of half of it, or less, is not slow.
  static constexpr double kSlow = 0.09;
  static constexpr double kMostWeight = 3;

  // node_of: the node of each rank.
  explicit SlowRanks(std::vector<int> node_of);

  // Takes one step. step: how long it took. own: the own time of each rank.
  void take(Duration step, std::span<const Duration> own);

  // Returns what is slow now, nodes first, then ranks; each in ascending order.
  std::vector<SlowFinding> findings() const;

  double needed() const { return needed_; }
  // Returns the weight of a score; 0: too few steps are known, or they vary too much.
  double weight() const { return weight_; }

 private:
  static constexpr std::size_t kRecent = 16;
  struct Evidence {
    int node = 0;
    double sum = 0;
    bool is_slow = false;
    std::array<float, kRecent> recent{};  // the excess of step n is at n % kRecent
  };

  void learn_node_medians();
  void learn_noise();
  void judge_nodes();

  std::vector<Evidence> evidence_;
  std::vector<std::vector<int>> nodes_;  // the ranks of each node
  std::vector<bool> is_node_slow_;
  double needed_;
  std::uint64_t steps_ = 0;
  std::vector<float> noise_;  // a ring of values
  std::size_t noise_end_ = 0;
  std::size_t next_learned_ = 0;  // the rank whose value is taken next
  double weight_ = 0;
  std::vector<float> scratch_;
  std::vector<float> excess_;
  std::vector<float> node_medians_;
};

// Returns "the others wait 12 % of each step".
std::string cost_text(double share);

// Returns "rank 3 (node n2) is slow: the others wait 12 % of each step", or "node n2 (ranks 8-15)
// is slow: ...". node: its name; empty: none is named.
std::string slow_text(const SlowFinding& finding, std::string_view node);

// Returns "rank 3 (node n2) is as fast as the others again".
std::string recovered_text(const SlowFinding& finding, std::string_view node);

}  // namespace ddprun
