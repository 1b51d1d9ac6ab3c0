#include "rendezvous/protocol/core/slow_ranks.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"
#include "base/concat.h"
#include "rendezvous/protocol/core/hang_analysis.h"

namespace ddprun {
namespace {

constexpr double kFalseAlarms = 0.01;  // in kSteps steps, of all ranks together
constexpr double kSteps = 1e5;

// Values that are kept. The weight is computed again every kLearnSteps steps.
constexpr std::size_t kLeastNoise = 20;
constexpr std::size_t kMostNoise = 512;
constexpr std::size_t kNoiseSteps = 64;
constexpr std::size_t kNoiseRanks = 32;  // whose values are taken in one step
constexpr std::uint64_t kLearnSteps = 4;

double score_of(double excess) { return std::clamp(2 * excess / SlowRanks::kSlow - 1, -1.0, 1.0); }

// Returns the largest weight up to kMostWeight with mean(exp(weight * score)) <= 1; 0: there is
// none.
double weight_for(std::span<const float> excess) {
  // Scores are counted in steps of 0.1.
  std::array<double, 21> counts{};
  for (const float one : excess) {
    ++counts[static_cast<std::size_t>(std::lround(10 * (score_of(one) + 1)))];
  }
  const auto excess_mean = [&](double weight) {
    double sum = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      sum += counts[i] * std::expm1(weight * (static_cast<double>(i) / 10 - 1));
    }
    return sum;
  };
  double low = 0;
  double high = SlowRanks::kMostWeight;
  if (excess_mean(high) <= 0) return high;
  // The function is convex and 0 at 0. It has a second zero if it falls first.
  for (int i = 0; i < 20; ++i) {
    const double middle = (low + high) / 2;
    (excess_mean(middle) <= 0 ? low : high) = middle;
  }
  return low;
}

float quantile(std::vector<float>& values, double share) {
  const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size()));
  const auto place = values.begin() + std::min<std::ptrdiff_t>(at, std::ssize(values) - 1);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

// Returns the mean of the two middle values if their number is even. Of two ranks on a node, the
// slower one alone would make its node look slow.
float median(std::vector<float>& values) {
  const float upper = quantile(values, 0.5);
  const auto middle = values.begin() + std::ssize(values) / 2;
  return values.size() % 2 == 1 ? upper : (*std::max_element(values.begin(), middle) + upper) / 2;
}

}  // namespace

SlowRanks::SlowRanks(std::vector<int> node_of)
    : evidence_(node_of.size()),
      needed_(std::log(static_cast<double>(std::max<std::size_t>(node_of.size(), 1)) * kSteps /
                       kFalseAlarms)) {
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    const auto node = static_cast<std::size_t>(node_of[rank]);
    evidence_[rank].node = node_of[rank];
    if (nodes_.size() <= node) nodes_.resize(node + 1);
    nodes_[node].push_back(static_cast<int>(rank));
  }
  is_node_slow_.resize(nodes_.size());
  noise_.reserve(std::min(kMostNoise, kNoiseSteps * std::min(evidence_.size(), kNoiseRanks)));
}

void SlowRanks::take(Duration step, std::span<const Duration> own) {
  DDPRUN_ASSERT(own.size() == evidence_.size(), "the time of each rank");
  if (own.size() < 2 || step <= Duration(0)) return;
  excess_.clear();
  for (const Duration time : own) excess_.push_back(static_cast<float>(time.count()));
  const float slowest = *std::ranges::max_element(excess_);
  const float slack = std::max(0.0F, static_cast<float>(step.count()) - slowest);

  // The median of the others is the value at `lower` of all, or the next one.
  const bool by_node = nodes_.size() > 1;
  if (by_node) learn_node_medians();
  const std::vector<float>& compared = by_node ? node_medians_ : excess_;
  scratch_ = compared;
  const auto lower = scratch_.begin() + (std::ssize(scratch_) - 1) / 2;
  std::nth_element(scratch_.begin(), lower, scratch_.end());
  const float below = *lower;
  const float above = *std::min_element(lower + 1, scratch_.end());
  const float even = below + slack;
  if (even <= 0) return;
  for (std::size_t rank = 0; rank < evidence_.size(); ++rank) {
    const float mine =
        by_node ? node_medians_[static_cast<std::size_t>(evidence_[rank].node)] : excess_[rank];
    excess_[rank] = (excess_[rank] - (mine <= below ? above : below)) / even;
  }

  for (std::size_t rank = 0; rank < evidence_.size(); ++rank) {
    Evidence& one = evidence_[rank];
    one.recent[steps_ % kRecent] = excess_[rank];
    if (weight_ == 0) continue;
    one.sum = std::clamp(one.sum + weight_ * score_of(excess_[rank]), 0.0, needed_);
    if (one.sum == needed_) one.is_slow = true;
    if (one.sum == 0) one.is_slow = false;
  }
  ++steps_;
  if (steps_ >= kRecent) learn_noise();
  judge_nodes();
}

void SlowRanks::learn_node_medians() {
  node_medians_.clear();
  for (const std::vector<int>& ranks : nodes_) {
    scratch_.clear();
    for (const int rank : ranks) scratch_.push_back(excess_[static_cast<std::size_t>(rank)]);
    node_medians_.push_back(median(scratch_));
  }
}

// Keeps how far the excess of some ranks was from the median of the steps around it, and sets the
// weight.
void SlowRanks::learn_noise() {
  const std::size_t count = std::min(evidence_.size(), kNoiseRanks);
  for (std::size_t i = 0; i < count; ++i) {
    const Evidence& one = evidence_[next_learned_++ % evidence_.size()];
    scratch_.assign(one.recent.begin(), one.recent.end());
    const float noise = one.recent[(steps_ + kRecent / 2) % kRecent] - quantile(scratch_, 0.5);
    if (noise_.size() < noise_.capacity()) {
      noise_.push_back(noise);
    } else {
      noise_[noise_end_++ % noise_.size()] = noise;
    }
  }
  if (noise_.size() < kLeastNoise || (weight_ > 0 && steps_ % kLearnSteps != 0)) return;
  weight_ = weight_for(noise_);
}

// A node becomes slow when one of its ranks is slow and the others are on the way there. It stays
// slow until less than half of them are slow.
void SlowRanks::judge_nodes() {
  if (nodes_.size() < 2) return;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    const std::vector<int>& ranks = nodes_[node];
    std::size_t slow = 0;
    std::size_t on_the_way = 0;
    for (const int rank : ranks) {
      const Evidence& one = evidence_[static_cast<std::size_t>(rank)];
      slow += one.is_slow;
      on_the_way += one.is_slow || one.sum * 2 >= needed_;
    }
    const bool begins = slow > 0 && on_the_way == ranks.size();
    const bool goes_on = is_node_slow_[node] && slow * 2 >= ranks.size();
    is_node_slow_[node] = ranks.size() > 1 && (begins || goes_on);
  }
}

std::vector<SlowFinding> SlowRanks::findings() const {
  const auto share = [this](const std::vector<int>& ranks) {
    std::vector<float> values;
    for (const int rank : ranks) {
      const auto& recent = evidence_[static_cast<std::size_t>(rank)].recent;
      values.insert(values.end(), recent.begin(), recent.end());
    }
    return std::clamp<double>(quantile(values, 0.5), 0, 1);
  };
  std::vector<SlowFinding> findings;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (!is_node_slow_[node]) continue;
    findings.push_back(
        {.ranks = nodes_[node], .node = static_cast<int>(node), .share = share(nodes_[node])});
  }
  for (std::size_t rank = 0; rank < evidence_.size(); ++rank) {
    const Evidence& one = evidence_[rank];
    if (!one.is_slow || is_node_slow_[static_cast<std::size_t>(one.node)]) continue;
    const std::vector<int> alone{static_cast<int>(rank)};
    findings.push_back({.ranks = alone, .node = std::nullopt, .share = share(alone)});
  }
  return findings;
}

std::string cost_text(double share) {
  return concat("the others wait ", std::lround(100 * share), " % of each step");
}

namespace {

// Returns "rank 3 (node n2) is", for a sentence.
std::string subject_of(const SlowFinding& finding, std::string_view node) {
  const bool is_one = finding.ranks.size() == 1;
  std::string who = (is_one ? "rank " : "ranks ") + rank_ranges(finding.ranks);
  if (!node.empty()) {
    who = finding.node ? concat("node ", node, " (", who, ")") : concat(who, " (node ", node, ")");
  }
  const bool is_singular = is_one || (finding.node && !node.empty());
  return who + (is_singular ? " is" : " are");
}

}  // namespace

std::string slow_text(const SlowFinding& finding, std::string_view node) {
  return concat(subject_of(finding, node), " slow: ", cost_text(finding.share));
}

std::string recovered_text(const SlowFinding& finding, std::string_view node) {
  return subject_of(finding, node) + " as fast as the others again";
}

}  // namespace ddprun
