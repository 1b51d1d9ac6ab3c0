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

std::optional<StepLimits::Finding> StepLimits::find() const {
  const std::optional<Summary> all = summary();
  if (!all) return std::nullopt;
  const auto largest = std::ranges::max_element(all->mean);
  if (*largest < 1) return std::nullopt;  // agents may send anything
  Finding finding{.part = static_cast<StepPart>(largest - all->mean.begin()), .percent = *largest};
  // Two parts that are about equal would take turns.
  if (news_ && share_of(all->mean, news_->part) > finding.percent - kLead) {
    finding.part = news_->part;
    finding.percent = share_of(all->mean, news_->part);
  }
  find_odd_ranks(finding);
  return finding;
}

// Finds the part in which a rank is farthest above the median. A rank that waits for a slower one
// has more communication, so communication is left out.
void StepLimits::find_odd_ranks(Finding& finding) const {
  double farthest = 0;
  std::vector<double> values;
  for (const auto& [part, word] : kStepPartWords) {
    if (part == StepPart::kCommunication) continue;
    values.clear();
    for (const auto& of_rank : shares_) {
      if (of_rank) values.push_back(share_of(*of_rank, part));
    }
    // The lower one of two, so that one of two ranks can be odd.
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
    std::ranges::nth_element(values, middle);
    const double median = *middle;
    const bool was_told = news_ && news_->odd_part == part;
    double top = 0, sum = 0;
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
      if (!shares_[rank]) continue;
      const double percent = share_of(*shares_[rank], part);
      const int number = static_cast<int>(rank);
      const bool was_odd = was_told && std::ranges::binary_search(news_->odd_ranks, number);
      if (percent - median < (was_odd ? kStillOdd : kOdd)) continue;
      ranks.push_back(number);
      sum += percent;
      top = std::max(top, percent - median);
    }
    // As above: the part of the last news stays if another one is not clearly farther.
    if (was_told && !ranks.empty()) top += kLead;
    if (top <= farthest) continue;
    farthest = top;
    finding.odd_part = part;
    finding.odd_percent = sum / static_cast<double>(ranks.size());
    finding.odd_ranks = std::move(ranks);
  }
}

bool StepLimits::have_like_parts(const Finding& one, const Finding& other) {
  return one.part == other.part && std::abs(one.percent - other.percent) < kChange;
}

// Returns what this finding and the last one have in common; nullopt: not even the largest part.
std::optional<StepLimits::Finding> StepLimits::confirmed(const Finding& finding) const {
  if (!last_ || !have_like_parts(finding, *last_)) return std::nullopt;
  Finding both{.part = finding.part, .percent = finding.percent};
  confirm_odd_ranks(both, finding);
  return both;
}

// Adds the ranks that are odd in both findings, and those of the last news that are odd in one of
// them. In a large job another rank may be odd each time.
void StepLimits::confirm_odd_ranks(Finding& both, const Finding& finding) const {
  const auto is_odd = [](const Finding& in, StepPart part, int rank) {
    return in.odd_part == part && std::ranges::binary_search(in.odd_ranks, rank);
  };
  const std::optional<StepPart> told = news_ ? news_->odd_part : std::nullopt;
  for (const std::optional<StepPart> part : {told, finding.odd_part}) {
    if (!part) continue;
    double sum = 0;
    for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
      const int number = static_cast<int>(rank);
      const int times = is_odd(finding, *part, number) + is_odd(*last_, *part, number);
      const bool was_told = news_ && is_odd(*news_, *part, number);
      if (times < (was_told ? 1 : 2)) continue;
      both.odd_ranks.push_back(number);
      sum += share_of(*shares_[rank], *part);
    }
    if (both.odd_ranks.empty()) continue;
    both.odd_part = part;
    both.odd_percent = sum / static_cast<double>(both.odd_ranks.size());
    return;
  }
}

std::string StepLimits::text_of(const Finding& finding) {
  std::string text = concat(std::lround(finding.percent), " % of a step is ",
                            enum_name(kStepPartWords, finding.part));
  if (!finding.odd_part) return text;
  const std::vector<int>& ranks = finding.odd_ranks;
  const std::string named = ranks.size() > kMostNamed ? concat(ranks.size(), " ranks")
                            : ranks.size() > 1        ? "ranks " + rank_ranges(ranks)
                                                      : concat("rank ", ranks.front());
  return concat(text, "; ", named, ": ", std::lround(finding.odd_percent), " % is ",
                enum_name(kStepPartWords, *finding.odd_part));
}

std::optional<std::string> StepLimits::judge(TimePoint now) {
  std::optional<Finding> finding = find();
  std::optional<Finding> both = finding ? confirmed(*finding) : std::nullopt;
  last_ = std::move(finding);
  if (!both || (news_ && now < quiet_until_)) return std::nullopt;
  const bool is_old = news_ && have_like_parts(*both, *news_) &&
                      both->odd_part == news_->odd_part && both->odd_ranks == news_->odd_ranks;
  if (is_old) return std::nullopt;
  news_ = std::move(both);
  quiet_until_ = now + next_quiet_;
  next_quiet_ = std::min(2 * next_quiet_, kLongestQuiet);
  return text_of(*news_);
}

}  // namespace ddprun
