// SlowSearch: finds the ranks and nodes of a generation that make the others wait, and what limits
// its steps.
//
// It works in rounds. In each round all agents are asked at once for the steps that their workers
// have done since the last one, at most 64. The steps that all nodes have reported are passed to
// SlowRanks, in their order. Steps are joined by their number, so the clocks of the nodes do not
// matter. A step that one node has not reported yet is kept for the next round. Now and then a
// round also asks for the shares of steps, which are passed to StepLimits.
//
// States: searching from begin() to end(), if the job is not too large; else idle. The rounds of a
// job whose workers report no steps become rarer, and those of a job with one rank: it is asked for
// shares only.
//
// Owner: Membership, on the service's thread. Pure; times are arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "rendezvous/accounts/core/step_limits.h"
#include "rendezvous/protocol/core/control_message.h"
#include "rendezvous/protocol/core/slow_ranks.h"

namespace ddprun {

class SlowSearch {
 public:
  static constexpr Duration kPeriod = std::chrono::seconds(5);
  static constexpr Duration kLongestPeriod = std::chrono::minutes(1);
  static constexpr Duration kSharesPeriod = std::chrono::seconds(30);  // or a round, if longer
  // A job with more ranks is not searched. From the second limit on, fewer steps are asked for.
  static constexpr std::size_t kMostRanks = 8192;
  static constexpr std::size_t kMostValues = 32768;  // of one round
  static constexpr std::size_t kLeastSteps = 16;
  // A rank or a node is named at most this often in a generation.
  static constexpr int kMostNamed = 3;

  struct Node {
    std::string agent_id;
    std::string host;  // for the texts
    int workers = 1;
  };

  // Begins a generation. nodes: by node rank. It does nothing if there are more ranks than the
  // limits allow.
  void begin(Generation generation, const std::vector<Node>& nodes, TimePoint now);
  // Ends the search. Nothing is slow after it.
  void end();

  // Takes what a node has reported. Reports of other agents or generations, and steps that do not
  // have a time for each worker, are dropped. Returns a line for each rank or node that has
  // become slow, and for each that is not slow any more. Adds a line for what limits the steps
  // if that is news.
  std::vector<std::string> take(const std::string& agent_id, const StepReport& report);

  // Begins a round if it is due. Returns what the agents are told.
  std::vector<ToAgent> tick(TimePoint now);
  // Returns when tick() has something to do; nullopt: not before begin().
  std::optional<TimePoint> deadline() const { return next_round_; }

  // Returns how many ranks are slow.
  std::size_t slow_ranks() const;
  // Returns on what the ranks spend their steps; nullopt: none reports it.
  std::optional<StepLimits::Summary> step_shares() const { return limits_.summary(); }

 private:
  struct NodeSteps {
    Node node;
    int first_rank = 0;
    std::deque<StepTimes> steps = {};  // that were not joined; ascending
    bool has_reported = false;         // in this round
    int times_named = 0;               // how often the node was named
  };
  struct News {
    std::size_t node;
    std::string line;
  };

  void keep_steps(NodeSteps& node, const std::vector<StepTimes>& steps);
  void judge();
  std::vector<std::string> compare_findings(const std::vector<SlowFinding>& before);
  std::size_t node_of(int rank) const;

  Generation generation_{-1};
  std::vector<NodeSteps> nodes_;  // empty: idle
  int asked_steps_ = 0;           // in a round; 0: there is nothing to compare
  SlowRanks ranks_{{}};
  std::vector<SlowFinding> findings_;
  std::vector<int> times_named_;  // how often each rank was named
  std::vector<News> news_;        // for the next round
  bool has_steps_ = true;         // some were reported in this round
  Duration period_ = kPeriod;
  std::optional<TimePoint> next_round_;
  StepLimits limits_;
  bool asks_shares_ = false;  // in this round
  TimePoint next_shares_;     // no round before asks for them
  TimePoint round_began_;
};

}  // namespace ddprun
