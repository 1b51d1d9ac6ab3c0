#include "launcher/flight/core/record.h"

#include <algorithm>
#include <set>

#include "base/is_control.h"

namespace ddprun {
namespace {

FlightGroupFacts facts_of(const FlightGroup& group) {
  FlightGroupFacts facts{.id = group.id,
                         .name = in_one_line(text_in(group.name)),
                         .size = group.size,
                         .digest = group.digest};
  const std::size_t listed = std::min<std::size_t>(group.listed, group.ranks.size());
  for (std::size_t i = 0; i < listed; ++i) facts.ranks.push_back(static_cast<int>(group.ranks[i]));
  return facts;
}

}  // namespace

const FlightGroupFacts* RankFlight::group(std::uint64_t id) const {
  const auto found = std::ranges::find(groups, id, &FlightGroupFacts::id);
  return found == groups.end() ? nullptr : &*found;
}

const std::string* RankFlight::origin_of(const FlightEntry& call) const {
  const auto found = origins.find(call.origin);
  return found == origins.end() ? nullptr : &found->second;
}

void read_flight(const WorkerPage& page, std::size_t most, RankFlight& flight) {
  flight.step = page.last_step();
  flight.call_count = page.calls.load(std::memory_order_acquire);
  const std::uint64_t left =
      std::min<std::uint64_t>({flight.call_count, std::uint64_t{kFlightRecords}, most});
  const std::uint64_t reports = page.reports.load(std::memory_order_acquire);
  for (std::uint64_t i = std::min<std::uint64_t>(reports, kStepMarks); i > 0; --i) {
    const std::optional<StepEntry> mark = read_mark(page, reports - i + 1);
    if (mark) flight.steps.push_back({mark->step, mark->ns});
  }
  const std::uint64_t waits = page.checkpoints.load(std::memory_order_acquire);
  for (std::uint64_t i = std::min<std::uint64_t>(waits, kCheckpointMarks); i > 0; --i) {
    const std::optional<CheckpointSpan> span = read_checkpoint(page, waits - i + 1);
    if (span) flight.checkpoints.push_back(*span);
  }
  std::set<std::uint32_t> origins;
  for (std::uint64_t i = left; i > 0; --i) {
    const std::optional<FlightEntry> entry = read_record(page, flight.call_count - i + 1);
    if (!entry) continue;
    flight.calls.push_back(*entry);
    if (entry->origin != 0) origins.insert(entry->origin);
  }
  const std::size_t groups =
      std::min<std::size_t>(page.group_count.load(std::memory_order_acquire), page.groups.size());
  for (std::size_t i = 0; i < groups; ++i) flight.groups.push_back(facts_of(page.groups[i]));
  const std::size_t known =
      std::min<std::size_t>(page.origin_count.load(std::memory_order_acquire), page.origins.size());
  for (const std::uint32_t origin : origins) {
    if (origin <= known) flight.origins[origin] = in_one_line(text_in(page.origins[origin - 1]));
  }
}

}  // namespace ddprun
