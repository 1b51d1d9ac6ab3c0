#include "launcher/hang/worker_pages.h"

#include <unistd.h>

#include <algorithm>

namespace ddprun {

Result<WorkerPages> WorkerPages::make(int workers) {
  Result<PageFile> made = make_page_file("ddprun-workers", static_cast<std::size_t>(workers));
  if (!made) return made.error();
  return WorkerPages(std::move(*made));
}

std::string WorkerPages::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(memory_.file.get());
}

PageSample WorkerPages::sample_of(int worker) const {
  const WorkerPage& page = (*this)[worker];
  PageSample sample{.reports = page.reports.load(std::memory_order_relaxed),
                    .activity = page.activity.load(std::memory_order_relaxed),
                    .calls = page.calls.load(std::memory_order_relaxed),
                    .is_patient = page.patient.load(std::memory_order_relaxed) > 0};
  if (const std::optional<FlightEntry> call = oldest_in_progress(page)) {
    sample.oldest_call = call->number;
  }
  return sample;
}

std::optional<std::int64_t> WorkerPages::step_of(int worker) const {
  return (*this)[worker].last_step();
}

std::vector<StepEntry> WorkerPages::marks_of(int worker) const {
  const WorkerPage& page = (*this)[worker];
  const std::uint64_t newest = page.reports.load(std::memory_order_acquire);
  std::vector<StepEntry> marks;
  for (std::uint64_t left = std::min<std::uint64_t>(newest, kStepMarks); left > 0; --left) {
    if (const auto mark = read_mark(page, newest - left + 1)) marks.push_back(*mark);
  }
  return marks;
}

bool WorkerPages::has_finished(int worker) const {
  return (*this)[worker].finished.load(std::memory_order_acquire) == 1;
}

std::optional<std::int64_t> WorkerPages::highest_step() const {
  std::optional<std::int64_t> highest;
  for (int i = 0; i < static_cast<int>(memory_.pages.count()); ++i) {
    highest = std::max(highest, step_of(i));
  }
  return highest;
}

WorkTimes WorkerPages::times(TimePoint now) const {
  WorkTimes times;
  for (int i = 0; i < static_cast<int>(memory_.pages.count()); ++i) {
    const WorkerPage& page = (*this)[i];
    // Workers may write any number.
    const auto within = [](std::uint64_t ns) {
      return Duration(static_cast<Duration::rep>(
          std::min<std::uint64_t>(ns, static_cast<std::uint64_t>(kLongestTimeout.count()))));
    };
    times.checkpoint =
        std::max(times.checkpoint, within(page.checkpoint_ns.load(std::memory_order_relaxed)));
    if (!page.last_step()) continue;
    const std::uint64_t first_ns = page.first_step_ns.load(std::memory_order_relaxed);
    if (first_ns == 0 || first_ns > to_page_time(now)) continue;
    const Duration since = within(to_page_time(now) - first_ns);
    if (times.first_step && since <= times.since_first) continue;
    times.first_step = page.first_step.load(std::memory_order_relaxed);
    times.since_first = since;
  }
  return times;
}

}  // namespace ddprun
