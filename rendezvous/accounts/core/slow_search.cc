#include "rendezvous/accounts/core/slow_search.h"

#include <algorithm>

namespace ddprun {

void SlowSearch::begin(Generation generation, const std::vector<Node>& nodes, TimePoint now) {
  end();
  std::vector<int> node_of_rank;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    const auto workers = static_cast<std::size_t>(nodes[node].workers);
    if (workers > kMaxReportedWorkers) return;
    node_of_rank.insert(node_of_rank.end(), workers, static_cast<int>(node));
    if (node_of_rank.size() > kMostRanks) return;
  }
  const std::size_t ranks = node_of_rank.size();
  if (ranks == 0) return;
  int first_rank = 0;
  for (const Node& node : nodes) {
    nodes_.push_back({.node = node, .first_rank = first_rank});
    first_rank += node.workers;
  }
  generation_ = generation;
  const std::size_t most = std::clamp(kMostValues / ranks, kLeastSteps, kMaxReportedSteps);
  asked_steps_ = ranks == 1 ? 0 : static_cast<int>(most);
  ranks_ = SlowRanks(std::move(node_of_rank));
  times_named_.assign(ranks, 0);
  limits_.begin(ranks);
  asks_shares_ = false;
  next_shares_ = now;
  has_steps_ = true;
  period_ = kPeriod;
  next_round_ = now + period_;
}

void SlowSearch::end() {
  nodes_.clear();
  ranks_ = SlowRanks({});
  findings_.clear();
  times_named_.clear();
  news_.clear();
  next_round_.reset();
  limits_.end();
}

std::vector<std::string> SlowSearch::take(const std::string& agent_id, const StepReport& report) {
  if (report.generation != generation_) return {};
  const auto found = std::ranges::find_if(
      nodes_, [&](const NodeSteps& one) { return one.node.agent_id == agent_id; });
  if (found == nodes_.end()) return {};
  found->has_reported = true;
  if (asked_steps_ > 0) keep_steps(*found, report.steps);
  for (const auto& [local_rank, shares] : report.shares) {
    if (local_rank.value < 0 || local_rank.value >= found->node.workers) continue;
    limits_.take(static_cast<std::size_t>(found->first_rank + local_rank.value), shares);
  }
  // A comparison for each report would cost the square of the number of nodes.
  if (!std::ranges::all_of(nodes_, &NodeSteps::has_reported)) return {};
  judge();
  std::vector<std::string> lines = compare_findings(std::exchange(findings_, ranks_.findings()));
  if (std::exchange(asks_shares_, false)) {
    if (auto news = limits_.judge(round_began_)) lines.push_back(std::move(*news));
  }
  return lines;
}

void SlowSearch::keep_steps(NodeSteps& node, const std::vector<StepTimes>& steps) {
  for (const StepTimes& one : steps) {
    if (one.own_us.size() != static_cast<std::size_t>(node.node.workers)) continue;
    has_steps_ = true;
    // A counter that begins again is another epoch, or a program that counts anew.
    if (!node.steps.empty() && one.step <= node.steps.back().step) node.steps.clear();
    node.steps.push_back(one);
    if (node.steps.size() > kMaxReportedSteps) node.steps.pop_front();
  }
}

// Passes the steps that all nodes have reported to SlowRanks.
void SlowSearch::judge() {
  using std::chrono::microseconds;
  std::vector<std::size_t> at(nodes_.size());
  std::vector<Duration> own;
  std::optional<std::int64_t> last;
  for (const StepTimes& first : nodes_[0].steps) {
    std::uint32_t whole_us = 0;
    own.clear();
    const auto join = [&](std::size_t node) {
      const std::deque<StepTimes>& steps = nodes_[node].steps;
      while (at[node] < steps.size() && steps[at[node]].step < first.step) ++at[node];
      if (at[node] == steps.size() || steps[at[node]].step != first.step) return false;
      const StepTimes& one = steps[at[node]];
      whole_us = std::max(whole_us, one.whole_us);
      for (const std::uint32_t us : one.own_us) own.push_back(microseconds(us));
      return true;
    };
    bool has_all = true;
    for (std::size_t node = 0; node < nodes_.size() && has_all; ++node) has_all = join(node);
    if (!has_all) continue;
    ranks_.take(microseconds(whole_us), own);
    last = first.step;
  }
  if (!last) return;
  for (NodeSteps& one : nodes_) {
    while (!one.steps.empty() && one.steps.front().step <= *last) one.steps.pop_front();
  }
}

std::size_t SlowSearch::node_of(int rank) const {
  const auto after = std::ranges::upper_bound(nodes_, rank, {}, &NodeSteps::first_rank);
  return static_cast<std::size_t>(after - nodes_.begin()) - 1;
}

std::vector<std::string> SlowSearch::compare_findings(const std::vector<SlowFinding>& before) {
  std::vector<std::string> lines;
  const auto add_lines = [&](const SlowFinding& finding, bool is_slow) {
    const int rank = finding.ranks.front();
    const std::size_t node = node_of(rank);
    int& times_named =
        finding.node ? nodes_[node].times_named : times_named_[static_cast<std::size_t>(rank)];
    // Of the pair of lines, either both are told or none.
    if (is_slow) ++times_named;
    if (times_named > kMostNamed) return;
    const std::string host = nodes_.size() > 1 ? nodes_[node].node.host : "";
    lines.push_back(is_slow ? slow_text(finding, host) : recovered_text(finding, host));
    news_.push_back({node, lines.back()});
  };
  const auto is_in = [](const SlowFinding& one, const std::vector<SlowFinding>& findings) {
    return std::ranges::any_of(findings, [&](const SlowFinding& other) {
      return other.node == one.node && other.ranks.front() == one.ranks.front();
    });
  };
  // Some of the ranks of a node may still be slow, or a rank that was slow may now be of a node
  // that is slow.
  const auto is_still_slow = [&](const SlowFinding& one) {
    return std::ranges::any_of(findings_, [&](const SlowFinding& other) {
      return std::ranges::any_of(
          other.ranks, [&](int rank) { return std::ranges::binary_search(one.ranks, rank); });
    });
  };
  for (const SlowFinding& one : findings_) {
    if (!is_in(one, before)) add_lines(one, true);
  }
  for (const SlowFinding& one : before) {
    if (!is_in(one, findings_) && !is_still_slow(one)) add_lines(one, false);
  }
  return lines;
}

std::vector<ToAgent> SlowSearch::tick(TimePoint now) {
  std::vector<ToAgent> directives;
  if (!next_round_ || now < *next_round_) return directives;
  period_ = has_steps_ ? kPeriod : std::min(2 * period_, kLongestPeriod);
  next_round_ = now + period_;
  has_steps_ = false;
  round_began_ = now;
  asks_shares_ = now >= next_shares_;
  if (asks_shares_) next_shares_ = now + kSharesPeriod;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    nodes_[node].has_reported = false;
    StepsDirective directive{
        .generation = generation_, .steps = asked_steps_, .asks_shares = asks_shares_};
    // The user of a job reads the output of node 0.
    for (const News& one : news_) {
      const bool is_for_it = node == 0 || one.node == node;
      if (is_for_it && directive.lines.size() < kMaxSlowLines) directive.lines.push_back(one.line);
    }
    for (const SlowFinding& one : findings_) {
      if (node_of(one.ranks.front()) != node) continue;
      for (const int rank : one.ranks) {
        directive.slow.push_back({LocalRank(rank - nodes_[node].first_rank), cost_text(one.share)});
      }
    }
    directives.push_back({nodes_[node].node.agent_id, std::move(directive)});
  }
  news_.clear();
  return directives;
}

std::size_t SlowSearch::slow_ranks() const {
  std::size_t ranks = 0;
  for (const SlowFinding& one : findings_) ranks += one.ranks.size();
  return ranks;
}

}  // namespace ddprun
