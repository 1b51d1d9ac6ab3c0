#include "launcher/flight/core/clocks.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace ddprun {
namespace {

// A collective of one generation: its group, its number there, and what it is.
using CollectiveKey = std::tuple<std::int64_t, std::uint64_t, std::uint64_t, FlightCall>;

// When the ranks of a host were in a collective: the last one began, and the first one ended.
struct Span {
  std::int64_t begun_ns = 0;
  std::int64_t ended_ns = 0;
};
using SpansOfHost = std::map<CollectiveKey, Span>;

// Returns whether a rank cannot leave the call before all ranks have come.
bool waits_for_all(FlightCall call) {
  using enum FlightCall;
  switch (call) {
    case kAllReduce:
    case kAllGather:
    case kReduceScatter:
    case kBarrier:
    case kAllToAll:
    case kAllReduceCoalesced:
    case kReduceScatterCoalesced:
    case kAllGatherCoalesced: return true;
    default: return false;
  }
}

// Returns whether times of the record can be computed with: a file may hold anything.
bool has_times(const RankFlight& flight) {
  constexpr std::int64_t kMost = std::int64_t{1} << 61;
  return flight.boot_ns < kMost && flight.wall_ns > 0 && flight.wall_ns < kMost;
}

void add_spans(const RankFlight& flight, const HostClock& clock, SpansOfHost& spans) {
  if (!has_times(flight)) return;
  for (const FlightEntry& call : flight.calls) {
    const bool is_whole = call.ended_ns >= call.begun_ns && call.ended_ns <= flight.boot_ns;
    if (!waits_for_all(call.call) || call.failed || call.collective == 0 || !is_whole) continue;
    const Span span{clock.wall_ns(call.begun_ns), clock.wall_ns(call.ended_ns)};
    const CollectiveKey key{flight.generation.value_or(-1), call.group, call.collective, call.call};
    const auto [found, is_new] = spans.emplace(key, span);
    if (is_new) continue;
    found->second.begun_ns = std::max(found->second.begun_ns, span.begun_ns);
    found->second.ended_ns = std::min(found->second.ended_ns, span.ended_ns);
  }
}

// Moves the clock to that of the reference.
void align(HostClock& clock, const SpansOfHost& reference, const SpansOfHost& own) {
  std::int64_t low = std::numeric_limits<std::int64_t>::min();
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> differences;
  for (const auto& [key, span] : own) {
    const auto there = reference.find(key);
    if (there == reference.end()) continue;
    low = std::max(low, there->second.begun_ns - span.ended_ns);
    high = std::min(high, there->second.ended_ns - span.begun_ns);
    differences.push_back(there->second.ended_ns - span.ended_ns);
  }
  clock.collectives = differences.size();
  clock.bound_ns.reset();
  if (differences.empty()) return;
  const auto middle = differences.begin() + static_cast<std::ptrdiff_t>(differences.size() / 2);
  std::nth_element(differences.begin(), middle, differences.end());
  const std::int64_t offset = low <= high ? std::clamp(*middle, low, high) : *middle;
  clock.boot_wall_ns += offset;
  clock.bound_ns = std::max(std::abs(offset - low), std::abs(high - offset));
}

}  // namespace

std::int64_t HostClock::wall_ns(std::uint64_t boot_ns) const {
  // Unsigned, because a worker's memory may hold any time.
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(boot_wall_ns) + boot_ns);
}

std::map<std::string, HostClock> align_clocks(const std::vector<RankFlight>& flights) {
  std::map<std::string, HostClock> clocks;
  std::map<std::string, SpansOfHost> spans;
  const RankFlight* first = nullptr;
  for (const RankFlight& flight : flights) {
    const std::int64_t at_boot =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(flight.wall_ns) - flight.boot_ns);
    const auto [clock, is_new] = clocks.try_emplace(flight.host);
    if (is_new) clock->second.boot_wall_ns = at_boot;
    add_spans(flight, clock->second, spans[flight.host]);
    if (!first || flight.rank < first->rank) first = &flight;
  }
  for (auto& [host, clock] : clocks) {
    if (host != first->host) align(clock, spans[first->host], spans[host]);
  }
  return clocks;
}

}  // namespace ddprun
