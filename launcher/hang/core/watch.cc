#include "launcher/hang/core/watch.h"

#include <algorithm>

#include "base/assert.h"

namespace ddprun {

Duration HangWatch::period() const {
  return std::min<Duration>(std::chrono::seconds(1), std::max(timeout_ / 4, Duration(1)));
}

void HangWatch::begin(std::size_t workers, TimePoint now) {
  workers_.assign(workers, {});
  looked_ = now;
  watched_ = {};
}

bool HangWatch::hangs(std::size_t worker) const {
  const Watched& one = workers_[worker];
  return (one.last.reports > 0 && one.idle > timeout_) || one.in_call > timeout_;
}

std::vector<std::size_t> HangWatch::take_silent() {
  std::vector<std::size_t> silent;
  if (has_reported_silent_ || watched_ <= timeout_) return silent;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].is_silent) silent.push_back(i);
  }
  has_reported_silent_ = !silent.empty();
  return silent;
}

bool HangWatch::look(const std::vector<std::optional<PageSample>>& samples, TimePoint now) {
  DDPRUN_ASSERT(samples.size() == workers_.size(), "one sample of each worker");
  const Duration passed = std::clamp(now - looked_, Duration(0), 2 * period());
  looked_ = now;
  watched_ += passed;
  bool one_hangs = false;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    Watched& one = workers_[i];
    const std::optional<PageSample>& sample = samples[i];
    if (!sample || sample->is_patient) {
      one = {};
      continue;
    }
    const bool is_active =
        sample->reports != one.last.reports || sample->activity != one.last.activity;
    one.is_silent = sample->reports == 0 && sample->calls == 0;
    one.idle = is_active ? Duration(0) : one.idle + passed;
    const bool in_same_call =
        sample->oldest_call != 0 && sample->oldest_call == one.last.oldest_call;
    one.in_call = in_same_call ? one.in_call + passed : Duration(0);
    one.last = *sample;
    one_hangs = one_hangs || hangs(i);
  }
  return one_hangs;
}

}  // namespace ddprun
