#include "rendezvous/accounts/core/step_limits.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/concat.h"
#include "rendezvous/protocol/core/hang_analysis.h"

namespace ddprun {

void StepLimits::begin(std::size_t ranks) {
  end();
  shares_.resize(ranks);
}

void StepLimits::end() {
  shares_.clear();
  last_.reset();
}

std::optional<StepLimits::Summary> StepLimits::summary() const {
  Summary summary;
  std::size_t ranks = 0;
  for (const std::optional<PartShares>& of_rank : shares_) {
    if (!of_rank) continue;
    ++ranks;
    for (std::size_t part = 0; part < kStepParts; ++part) {
      summary.mean[part] += (*of_rank)[part];
      summary.highest[part] = std::max(summary.highest[part], (*of_rank)[part]);
    }
  }
  if (ranks == 0) return std::nullopt;
  for (double& percent : summary.mean) percent /= static_cast<double>(ranks);
  return summary;
}

std::optional<StepLimits::Look> StepLimits::look_now() const {
  const std::optional<Summary> all = summary();
  if (!all) return std::nullopt;
  const auto largest = std::ranges::max_element(all->mean);
  if (*largest < 1) return std::nullopt;  // agents may send anything
  Look look{.largest = {static_cast<StepPart>(largest - all->mean.begin()), *largest},
            .above = above_medians()};
  // Two parts that are about equal would take turns.
  if (news_ && share_of(all->mean, news_->largest.part) > *largest - kLead) {
    look.largest = {news_->largest.part, share_of(all->mean, news_->largest.part)};
  }
  return look;
}

// Returns how far each rank is above the median of each part; 0 for ranks without shares. A rank
// that waits for a slower one has more communication, so that is 0, too.
std::vector<PartShares> StepLimits::above_medians() const {
  std::vector<PartShares> above(shares_.size());
  std::vector<double> values;
  for (std::size_t part = 0; part < kStepParts; ++part) {
    if (static_cast<StepPart>(part) == StepPart::kCommunication) continue;
    values.clear();
    for (const auto& of_rank : shares_) {
      if (of_rank) values.push_back((*of_rank)[part]);
    }
    // The lower one of two, so that one of two ranks can be odd.
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
    std::ranges::nth_element(values, middle);
    for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
      if (shares_[rank]) above[rank][part] = (*shares_[rank])[part] - *middle;
    }
  }
  return above;
}

bool StepLimits::are_alike(const Largest& one, const Largest& other) {
  return one.part == other.part && std::abs(one.percent - other.percent) < kChange;
}

// Returns what this look and the last one have in common; nullopt: not even the largest part.
std::optional<StepLimits::News> StepLimits::confirmed(const Look& look) const {
  if (!last_ || !are_alike(look.largest, last_->largest)) return std::nullopt;
  News both{.largest = look.largest};
  double farthest = 0;
  for (const auto& [part, word] : kStepPartWords) {
    const bool is_reported = news_ && news_->odd_part == part;
    double top = 0, sum = 0;
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
      const int number = static_cast<int>(rank);
      const bool was_odd = is_reported && std::ranges::binary_search(news_->odd_ranks, number);
      const auto [low, high] =
          std::minmax({share_of(look.above[rank], part), share_of(last_->above[rank], part)});
      // In a large job another rank may be odd each time. So one look names none, and clears none.
      const double above = was_odd ? high : low;
      if (above < (was_odd ? kStillOdd : kOdd)) continue;
      ranks.push_back(number);
      sum += share_of(*shares_[rank], part);
      top = std::max(top, above);
    }
    // As above: the part of the last news stays if another one is not clearly farther.
    if (is_reported && !ranks.empty()) top += kLead;
    if (top <= farthest) continue;
    farthest = top;
    both.odd_part = part;
    both.odd_percent = sum / static_cast<double>(ranks.size());
    both.odd_ranks = std::move(ranks);
  }
  return both;
}

std::string StepLimits::text_of(const News& news) {
  std::string text = concat(std::lround(news.largest.percent), " % of a step is ",
                            enum_name(kStepPartWords, news.largest.part));
  if (!news.odd_part) return text;
  const std::vector<int>& ranks = news.odd_ranks;
  const std::string named = ranks.size() > kMostNamed ? concat(ranks.size(), " ranks")
                            : ranks.size() > 1        ? "ranks " + rank_ranges(ranks)
                                                      : concat("rank ", ranks.front());
  return concat(text, "; ", named, ": ", std::lround(news.odd_percent), " % is ",
                enum_name(kStepPartWords, *news.odd_part));
}

std::optional<std::string> StepLimits::judge(TimePoint now) {
  std::optional<Look> newest = look_now();
  std::optional<News> both = newest ? confirmed(*newest) : std::nullopt;
  last_ = std::move(newest);
  if (!both || (news_ && now < quiet_until_)) return std::nullopt;
  const bool is_old = news_ && are_alike(both->largest, news_->largest) &&
                      both->odd_part == news_->odd_part && both->odd_ranks == news_->odd_ranks;
  if (is_old) return std::nullopt;
  if (now > quiet_until_ + next_quiet_) next_quiet_ = kQuiet;
  news_ = std::move(both);
  quiet_until_ = now + next_quiet_;
  next_quiet_ = std::min(2 * next_quiet_, kLongestQuiet);
  return text_of(*news_);
}

}  // namespace ddprun
