#include "worker_lib/ddp/core/step_statistics.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/assert.h"

namespace ddprun {
namespace {

// values: at least one; they are reordered.
Duration median_of(std::vector<Duration>& values) {
  const auto middle = values.begin() + values.size() / 2;
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

// Returns the value of `of` for each step.
std::vector<Duration> values_of(const std::deque<StepTimes>& steps,
                                const std::function<Duration(const StepTimes&)>& of) {
  std::vector<Duration> values;
  std::ranges::transform(steps, std::back_inserter(values), of);
  return values;
}

Spread spread_of(const std::deque<StepTimes>& steps, Duration StepTimes::*time) {
  std::vector<Duration> values = values_of(steps, time);
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  const Duration sum = std::accumulate(values.begin(), values.end(), Duration());
  Spread spread{.min = *min, .mean = sum / static_cast<std::int64_t>(values.size()), .max = *max};
  spread.median = median_of(values);
  return spread;
}

struct Span {
  Duration begin, end;
};

// The time that the intervals cover, and the part of it before `border`.
struct Cover {
  Duration all = {}, before = {};
};

Cover cover_of(std::vector<Span> spans, Duration border) {
  std::ranges::sort(spans, {}, &Span::begin);
  Cover cover;
  Duration covered_to = Duration::min();
  for (const Span& span : spans) {
    const Duration begin = std::max(span.begin, covered_to);
    if (span.end <= begin) continue;
    cover.all += span.end - begin;
    cover.before += std::max(std::min(span.end, border) - begin, Duration());
    covered_to = span.end;
  }
  return cover;
}

}  // namespace

StepRecord::StepRecord(std::int64_t pass, TimePoint began, std::vector<BucketTimes> buckets)
    : pass_(pass), began_(began), buckets_(std::move(buckets)), moments_(buckets_.size()) {}

StepTimes StepRecord::end(TimePoint now) const {
  DDPRUN_ASSERT(computed_.has_value(), "a pass ends after autograd");
  StepTimes step{
      .pass = pass_, .backward = now - began_, .compute = *computed_ - began_, .buckets = buckets_};
  std::vector<Span> on_the_way;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const auto& [ready, sent, done] = moments_[i];
    DDPRUN_ASSERT(sent && done, "a pass that went well has sent all buckets");
    step.buckets[i].ready = ready.value_or(*sent) - began_;
    step.buckets[i].sent = *sent - began_;
    step.buckets[i].done = *done - began_;
    on_the_way.push_back({step.buckets[i].sent, step.buckets[i].done});
  }
  const Cover cover = cover_of(std::move(on_the_way), step.compute);
  step.communication = cover.all;
  step.overlap = cover.before;
  step.exposed = cover.all - cover.before;
  return step;
}

void StepStatistics::add(StepTimes step) {
  if (std::exchange(have_buckets_changed_, false)) recent_.clear();
  if (recent_.size() == kRecentSteps) recent_.pop_front();
  recent_.push_back(std::move(step));
}

std::optional<StepTimes> StepStatistics::last() const {
  return recent_.empty() ? std::nullopt : std::optional(recent_.back());
}

StepSummary StepStatistics::summary() const {
  StepSummary summary{.steps = recent_.size()};
  if (recent_.empty()) return summary;
  for (const StepTime& time : kStepTimes)
    summary.*time.of_summary = spread_of(recent_, time.of_step);
  summary.buckets = recent_.back().buckets;
  for (std::size_t i = 0; i < summary.buckets.size(); ++i) {
    const auto median = [&](Duration BucketTimes::*time) {
      std::vector<Duration> values =
          values_of(recent_, [=](const StepTimes& step) { return step.buckets[i].*time; });
      return median_of(values);
    };
    summary.buckets[i].ready = median(&BucketTimes::ready);
    summary.buckets[i].sent = median(&BucketTimes::sent);
    summary.buckets[i].done = median(&BucketTimes::done);
  }
  return summary;
}

}  // namespace ddprun
