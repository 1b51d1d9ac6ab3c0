// StepLimits: what limits the training steps of a job, from the shares that its ranks report
// (base/step_shares.h).
//
// A finding is the part with the largest mean over the ranks, and the ranks whose share of another
// part is far above the median. The first finding is news, and so is each one that differs clearly
// from the last news:
//
//   another part is the largest, by kLead or more;
//   its share has changed by kChange or more;
//   other ranks are odd: kOdd above the median. Ranks of the last news stay odd above kStillOdd.
//
// A part counts when it was found twice in a row, because the first steps and evaluations have
// other shares. So does each odd rank, and so does that a rank of the last news is not odd any
// more. After news there are none for kQuiet, after the next news for twice as long, up to
// kLongestQuiet, also over several generations: so a job that changes all the time does not fill
// the events. If a whole next pause passes without news, the pause after the next ones is kQuiet
// again.
//
// Owner: SlowSearch in the service. Pure; times are arguments. Any one thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "rendezvous/protocol/core/step_part.h"

namespace ddprun {

class StepLimits {
 public:
  // In percent of a step.
  static constexpr double kLead = 10;
  static constexpr double kChange = 20;
  static constexpr double kOdd = 15;
  static constexpr double kStillOdd = 8;
  static constexpr Duration kQuiet = std::chrono::minutes(10);
  static constexpr Duration kLongestQuiet = std::chrono::hours(12);
  // More ranks than these are counted in the text, not named.
  static constexpr std::size_t kMostNamed = 16;

  // Begins a generation with this many ranks. What was news before still counts.
  void begin(std::size_t ranks);
  // Ends it. No rank has shares after it.
  void end();

  // Takes the newest shares of a rank. REQUIRES: rank is less than in begin().
  void take(std::size_t rank, const StepShares& shares) { shares_[rank] = parts_of(shares); }

  // Looks at the shares. Call it when all ranks could report. Returns the news, as "41 % of a step
  // is communication; ranks 3,5: 38 % is data"; nullopt: there are none.
  std::optional<std::string> judge(TimePoint now);

  struct Summary {
    PartShares mean{};
    PartShares highest{};  // of each part, the share of the rank that has most of it
  };
  // Returns the shares of all ranks that report; nullopt: none does.
  std::optional<Summary> summary() const;

 private:
  struct Largest {
    StepPart part{};
    double percent = 0;  // the mean of all ranks
  };
  struct Look {
    Largest largest;
    std::vector<PartShares> above;  // by rank: by how much it is above the median of each part
  };
  struct News {
    Largest largest;
    std::optional<StepPart> odd_part = {};
    std::vector<int> odd_ranks = {};  // ascending
    double odd_percent = 0;           // their mean
  };
  std::optional<Look> look_now() const;
  std::vector<PartShares> above_medians() const;
  std::optional<News> confirmed(const Look& look) const;
  static bool are_alike(const Largest& one, const Largest& other);
  static std::string text_of(const News& news);

  std::vector<std::optional<PartShares>> shares_;  // by rank
  std::optional<Look> last_;                       // of the last judge()
  std::optional<News> news_;                       // the last news
  TimePoint quiet_until_;
  Duration next_quiet_ = kQuiet;  // after the next news
};

}  // namespace ddprun
