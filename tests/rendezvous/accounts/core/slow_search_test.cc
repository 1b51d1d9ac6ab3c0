#include "rendezvous/accounts/core/slow_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/support/recorded_steps.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A job whose nodes answer StepsDirective. Its steps take recorded times.
class SlowSearchTest : public testing::Test {
 protected:
  void begin(int nodes, int workers_on_a_node, const char* load = "quiet", std::uint64_t seed = 1) {
    workers_ = workers_on_a_node;
    std::vector<SlowSearch::Node> all;
    for (int node = 0; node < nodes; ++node) {
      all.push_back({concat("id-", node), concat("n", node), workers_on_a_node});
    }
    times_.emplace(load, seed);
    slower_.assign(static_cast<std::size_t>(nodes * workers_on_a_node), 1.0);
    nodes_.assign(static_cast<std::size_t>(nodes), {});
    search_.begin(Generation(3), all, now_);
  }

  // Does steps on all nodes.
  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      ++step_;
      std::vector<std::uint32_t> own;
      for (const double factor : slower_) {
        own.push_back(static_cast<std::uint32_t>(times_->draw_ns() * factor / 1000));
      }
      const std::uint32_t whole = *std::ranges::max_element(own) * 51 / 50;
      for (std::size_t node = 0; node < nodes_.size(); ++node) {
        const auto first = own.begin() + static_cast<std::ptrdiff_t>(node) * workers_;
        nodes_[node].done.push_back({step_, whole, {first, first + workers_}});
      }
    }
  }

  // Begins the next round, and lets the nodes reply. Node k has not seen the last lag[k] steps yet.
  std::vector<std::string> round(const std::vector<std::size_t>& lag = {}) {
    now_ = search_.deadline().value_or(now_);
    directives_.clear();
    std::vector<std::string> lines;
    for (const ToAgent& to : search_.tick(now_)) {
      const auto& directive = std::get<StepsDirective>(to.message);
      directives_[to.agent_id] = directive;
      const std::size_t node = static_cast<std::size_t>(std::stoi(to.agent_id.substr(3)));
      std::ranges::move(search_.take(to.agent_id, reply(node, directive, lag)),
                        std::back_inserter(lines));
    }
    return lines;
  }
  StepReport reply(std::size_t node, const StepsDirective& directive,
                   const std::vector<std::size_t>& lag) {
    OneNode& one = nodes_[node];
    const std::size_t end = one.done.size() - (lag.empty() ? 0 : lag[node]);
    const auto most = static_cast<std::size_t>(directive.steps);
    const std::size_t begin = std::max(one.sent, end > most ? end - most : 0);
    one.sent = end;
    const auto at = [&](std::size_t i) {
      return one.done.begin() + static_cast<std::ptrdiff_t>(i);
    };
    return {.generation = directive.generation, .steps = {at(begin), at(end)}};
  }

  struct OneNode {
    std::vector<StepTimes> done;
    std::size_t sent = 0;
  };
  SlowSearch search_;
  TimePoint now_{seconds(100)};
  int workers_ = 1;
  std::int64_t step_ = 0;
  std::optional<testing_support::RecordedSteps> times_;
  std::vector<double> slower_;
  std::vector<OneNode> nodes_;
  std::map<std::string, StepsDirective> directives_;
};

TEST_F(SlowSearchTest, ARankOfAnotherNodeIsNamedAndItsNodeAndNode0AreTold) {
  begin(3, 4);
  steps(64);
  EXPECT_THAT(round(), IsEmpty());
  slower_[6] = 1.12;
  steps(40);
  EXPECT_THAT(round(), ElementsAre("rank 6 (node n1) is slow: the others wait 12 % of each step"));
  EXPECT_EQ(search_.slow_ranks(), 1u);
  steps(40);
  EXPECT_THAT(round(), IsEmpty()) << "it is named once";
  EXPECT_THAT(directives_["id-0"].lines, ElementsAre(HasSubstr("rank 6 (node n1) is slow")));
  EXPECT_THAT(directives_["id-1"].lines, ElementsAre(HasSubstr("rank 6 (node n1) is slow")));
  EXPECT_THAT(directives_["id-2"].lines, IsEmpty());
  ASSERT_EQ(directives_["id-1"].slow.size(), 1u);
  EXPECT_EQ(directives_["id-1"].slow[0].local_rank, LocalRank(2));
  EXPECT_THAT(directives_["id-1"].slow[0].cost, HasSubstr("the others wait"));
  EXPECT_THAT(directives_["id-0"].slow, IsEmpty());

  slower_[6] = 1.0;
  steps(60);
  EXPECT_THAT(round(), ElementsAre("rank 6 (node n1) is as fast as the others again"));
  EXPECT_EQ(search_.slow_ranks(), 0u);
  round();
  EXPECT_THAT(directives_["id-1"].slow, IsEmpty());
}

TEST_F(SlowSearchTest, ASlowNodeIsNamedAsANodeAndThenItsLastSlowRank) {
  begin(3, 2);
  steps(64);
  round();
  slower_[2] = slower_[3] = 1.2;
  steps(60);
  EXPECT_THAT(
      round(),
      ElementsAre(testing::ContainsRegex("node n1 \\(ranks 2-3\\) is slow: the others wait")));
  EXPECT_EQ(search_.slow_ranks(), 2u);
  steps(1);
  round();
  EXPECT_EQ(directives_["id-1"].slow.size(), 2u);
  slower_[2] = slower_[3] = 1.0;
  steps(64);
  EXPECT_THAT(round(), ElementsAre("node n1 (ranks 2-3) is as fast as the others again"));
}

// Nodes are not asked at exactly the same moment, and have done other steps by then.
TEST_F(SlowSearchTest, StepsThatANodeHasNotReportedYetAreJoinedInTheNextRound) {
  begin(2, 1);
  int named = 0;
  slower_[1] = 1.15;
  for (int i = 0; i < 80; ++i) {
    steps(1);
    const bool is_even = i % 2 == 0;
    const std::size_t lag = i < 2 ? 0 : 1;
    named += static_cast<int>(
        round(is_even ? std::vector<std::size_t>{lag, 0} : std::vector<std::size_t>{0, lag})
            .size());
  }
  EXPECT_EQ(named, 1) << "one step in each round, and always another node is behind";
}

TEST_F(SlowSearchTest, MoreStepsThanAreKeptMayBeDoneBetweenTwoRounds) {
  begin(2, 2);
  slower_[3] = 1.15;
  int named = 0;
  for (int i = 0; i < 5; ++i) {
    steps(1000);
    named += static_cast<int>(round({30, 0}).size());
  }
  EXPECT_EQ(named, 1);
}

TEST_F(SlowSearchTest, NothingIsJoinedWhileANodeIsSilent) {
  begin(2, 1);
  slower_[1] = 1.3;
  for (int i = 0; i < 5; ++i) {
    steps(60);
    now_ = *search_.deadline();
    const auto directives = search_.tick(now_);
    ASSERT_EQ(directives.size(), 2u);
    const auto& directive = std::get<StepsDirective>(directives[1].message);
    EXPECT_THAT(search_.take("id-1", reply(1, directive, {})), IsEmpty());
  }
  steps(60);
  EXPECT_EQ(round().size(), 1u) << "it is back";
}

TEST_F(SlowSearchTest, ACounterThatBeginsAgainIsNotJoinedWithTheStepsBefore) {
  begin(2, 1);
  steps(64);
  round();
  slower_[1] = 1.3;
  for (int epoch = 0; epoch < 5; ++epoch) {
    step_ = 0;
    steps(64);
    // The second node is an epoch behind. Its steps have the same numbers.
    if (epoch == 0) nodes_[1].done.resize(nodes_[1].done.size() - 64);
    round();
  }
  EXPECT_EQ(search_.slow_ranks(), 1u);
}

TEST_F(SlowSearchTest, NonsenseAndOtherAgentsChangeNothing) {
  begin(2, 1);
  steps(64);
  round();
  StepReport report{.generation = Generation(3)};
  for (int i = 0; i < 64; ++i) report.steps.push_back({1000 + i, 5000, {1, 2}});
  report.steps.push_back({5000, 0, {0}});
  report.steps.push_back({5000, 4'294'967'295, {4'294'967'295}});
  report.steps.push_back({-5000, 4'294'967'295, {1}});
  EXPECT_THAT(search_.take("id-0", report), IsEmpty());
  EXPECT_THAT(search_.take("id-1", report), IsEmpty());
  EXPECT_THAT(search_.take("of another job", report), IsEmpty());
  report.generation = Generation(2);
  EXPECT_THAT(search_.take("id-0", report), IsEmpty());
  EXPECT_EQ(search_.slow_ranks(), 0u);
}

TEST_F(SlowSearchTest, AJobWithoutStepsIsAskedLessOften) {
  begin(2, 1);
  std::vector<Duration> pauses;
  for (int i = 0; i < 7; ++i) {
    const TimePoint before = now_;
    round();
    pauses.push_back(now_ - before);
  }
  EXPECT_EQ(pauses.front(), SlowSearch::kPeriod);
  EXPECT_EQ(pauses.back(), SlowSearch::kLongestPeriod);
  steps(3);
  round();
  round();
  const TimePoint before = now_;
  steps(3);
  round();
  EXPECT_EQ(now_ - before, SlowSearch::kPeriod);
}

TEST_F(SlowSearchTest, JobsThatAreTooLargeAreNotAsked) {
  begin(1, static_cast<int>(kMaxReportedWorkers) + 1);
  EXPECT_FALSE(search_.deadline());
  begin(100, 100);
  EXPECT_FALSE(search_.deadline());
  begin(0, 1);
  EXPECT_FALSE(search_.deadline());
  begin(16, 512);
  ASSERT_TRUE(search_.deadline());
  const auto directives = search_.tick(*search_.deadline());
  EXPECT_EQ(std::get<StepsDirective>(directives[0].message).steps, 16);
  search_.end();
  EXPECT_FALSE(search_.deadline());
  EXPECT_THAT(search_.tick(now_ + seconds(100)), IsEmpty());
}

// --- the shares of a step

TEST_F(SlowSearchTest, SharesAreAskedForEvery30SecondsAndTheirLimitIsNews) {
  begin(2, 2);
  std::vector<TimePoint> asked;
  std::vector<std::string> lines;
  for (int i = 0; i < 14; ++i) {
    steps(10);
    now_ = *search_.deadline();
    const std::vector<ToAgent> directives = search_.tick(now_);
    for (std::size_t node = 0; node < 2; ++node) {
      const auto& directive = std::get<StepsDirective>(directives[node].message);
      EXPECT_EQ(directive.asks_shares, std::get<StepsDirective>(directives[0].message).asks_shares);
      StepReport report = reply(node, directive, {});
      if (directive.asks_shares) {
        if (node == 0) asked.push_back(now_);
        report.shares = {{LocalRank(0), {.forward = 20, .backward = 30, .communication = 45}},
                         {LocalRank(1), {.forward = 20, .backward = 30, .communication = 45}}};
        if (node == 1) report.shares[1].shares = {.data = 50, .forward = 20, .backward = 30};
      }
      std::ranges::move(search_.take(directives[node].agent_id, report), std::back_inserter(lines));
    }
  }
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_EQ(asked[1] - asked[0], SlowSearch::kSharesPeriod);
  EXPECT_EQ(asked[2] - asked[1], SlowSearch::kSharesPeriod);
  EXPECT_THAT(lines, ElementsAre("34 % of a step is communication; rank 3: 50 % is data"));
  ASSERT_TRUE(search_.step_shares());
  EXPECT_EQ(share_of(search_.step_shares()->highest, StepPart::kData), 50);
  search_.end();
  EXPECT_FALSE(search_.step_shares());
}

TEST_F(SlowSearchTest, ARankAloneIsAskedForSharesOnly) {
  begin(1, 1);
  for (int i = 0; i < 10; ++i) {
    steps(100);
    now_ = *search_.deadline();
    const auto directive = std::get<StepsDirective>(search_.tick(now_)[0].message);
    EXPECT_EQ(directive.steps, 0);
    StepReport report{.generation = directive.generation, .steps = {{i, 1300, {1000}}}};
    if (directive.asks_shares) report.shares = {{LocalRank(0), {.data = 70, .forward = 30}}};
    const auto lines = search_.take("id-0", report);
    EXPECT_EQ(lines.size(), i == 3 ? 1u : 0u) << i;
  }
  EXPECT_EQ(*search_.deadline() - now_, SlowSearch::kLongestPeriod);
}

TEST_F(SlowSearchTest, SharesOfRanksThatDoNotExistChangeNothing) {
  begin(2, 1);
  StepReport report{.generation = Generation(3)};
  report.shares = {{LocalRank(1), {}}, {LocalRank(-1), {}}, {LocalRank(2'147'483'647), {}}};
  search_.take("id-1", report);
  EXPECT_FALSE(search_.step_shares());
  report.shares = {{LocalRank(0), {.forward = 100}}};
  report.generation = Generation(2);
  search_.take("id-1", report);
  EXPECT_FALSE(search_.step_shares()) << "of another generation";
  report.generation = Generation(3);
  search_.take("id-1", report);
  EXPECT_TRUE(search_.step_shares());
}

TEST_F(SlowSearchTest, ARankThatIsSlowAgainAndAgainIsNamedThreeTimes) {
  begin(2, 2);
  int lines = 0;
  for (int i = 0; i < 10; ++i) {
    slower_[2] = 1.2;
    steps(60);
    lines += static_cast<int>(round().size());
    slower_[2] = 1.0;
    steps(60);
    lines += static_cast<int>(round().size());
  }
  EXPECT_EQ(lines, 2 * SlowSearch::kMostNamed);
}

TEST_F(SlowSearchTest, AJobOfOneNodeNamesNoNode) {
  begin(1, 4);
  slower_[2] = 1.2;
  steps(64);
  EXPECT_THAT(round(), ElementsAre(HasSubstr("rank 2 is slow: the others wait ")));
}

}  // namespace
}  // namespace ddprun
