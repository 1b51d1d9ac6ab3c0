#include "launcher/flight/core/compare.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "rendezvous/protocol/core/hang_analysis.h"

namespace ddprun {
namespace {

using Flights = std::vector<RankFlight>;
using Kind = FlightFinding::Kind;

// For at most this many ranks that are behind, the text says what they do instead.
constexpr std::size_t kMostInFull = 8;

std::string ranks_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + rank_ranges(ranks);
}
const char* have(const std::vector<int>& ranks) { return ranks.size() == 1 ? " has" : " have"; }

// Returns what must be the same for all ranks. In all_to_all each rank may have another size.
auto signature(const FlightEntry& call) {
  const std::uint64_t bytes = call.call == FlightCall::kAllToAll ? 0 : call.bytes;
  return std::tuple(call.call, bytes, call.dtype, call.op, call.peer);
}

struct Member {
  const RankFlight* flight;
  std::map<std::uint64_t, const FlightEntry*> calls;  // collectives of one group, by number
  std::uint64_t last_well = 0;                        // highest number of a successful one

  // Returns whether the rank waits in the collective, or the collective failed and no later one
  // succeeded.
  bool is_held_up(std::uint64_t collective) const {
    const FlightEntry* one = call(collective);
    return one && (one->ended_ns == 0 || (one->failed && collective > last_well));
  }
  // Returns true if all of its calls in this group may have been overwritten.
  bool is_unknown() const { return calls.empty() && flight->call_count > flight->calls.size(); }
  std::uint64_t last() const { return calls.empty() ? 0 : calls.rbegin()->first; }
  const FlightEntry* call(std::uint64_t collective) const {
    const auto found = calls.find(collective);
    return found == calls.end() ? nullptr : found->second;
  }
};

// Returns whether the rank is in the group. Ranks may also know groups that they are not in.
bool is_member(const Flights& flights, const RankFlight& flight, std::uint64_t group) {
  if (group == 0) return true;
  bool all_are_known = false;
  for (const RankFlight& one : flights) {
    const FlightGroupFacts* facts = one.group(group);
    if (!facts) continue;
    if (std::ranges::count(facts->ranks, flight.rank.value) > 0) return true;
    all_are_known = all_are_known || facts->ranks.size() == facts->size;
  }
  if (!all_are_known && flight.group(group)) return true;
  return std::ranges::count(flight.calls, group, &FlightEntry::group) > 0;
}

std::vector<Member> members_of(const Flights& flights, std::uint64_t group) {
  std::vector<Member> members;
  for (const RankFlight& flight : flights) {
    if (!is_member(flights, flight, group)) continue;
    Member member{.flight = &flight, .calls = {}};
    for (const FlightEntry& call : flight.calls) {
      if (call.group != group || is_message(call.call)) continue;
      member.calls[call.collective] = &call;
      if (call.ended_ns == 0 || call.failed) continue;
      member.last_well = std::max(member.last_well, call.collective);
    }
    members.push_back(std::move(member));
  }
  return members;
}

std::string from_text(const RankFlight& flight, const FlightEntry& call) {
  const std::string* origin = flight.origin_of(call);
  return origin ? ", from " + *origin : "";
}

std::string collective_text(const Flights& flights, const FlightEntry& call) {
  return words_of(call) + " (collective " + std::to_string(call.collective) + " of " +
         group_text(flights, call.group) + ")";
}

// --- one group -----------------------------------------------------------------------------------

struct Variant {
  std::vector<int> ranks;
  std::string words;
};

// Returns the different calls that ranks made as this collective. The call of the most ranks is
// first.
std::vector<Variant> variants_of(const std::vector<Member>& members, std::uint64_t collective) {
  std::map<decltype(signature(FlightEntry())), Variant> by_signature;
  for (const Member& member : members) {
    const FlightEntry* call = member.call(collective);
    if (!call) continue;
    Variant& variant = by_signature[signature(*call)];
    if (variant.ranks.empty()) variant.words = words_of(*call) + from_text(*member.flight, *call);
    variant.ranks.push_back(member.flight->rank.value);
  }
  std::vector<Variant> variants;
  for (auto& [key, variant] : by_signature) variants.push_back(std::move(variant));
  std::ranges::stable_sort(variants, [](const Variant& a, const Variant& b) {
    return std::pair(b.ranks.size(), a.ranks.front()) < std::pair(a.ranks.size(), b.ranks.front());
  });
  return variants;
}

void find_mismatch(const Flights& flights, const std::vector<Member>& members, std::uint64_t group,
                   std::vector<FlightFinding>& findings) {
  std::set<std::uint64_t> numbers;
  for (const Member& member : members) {
    for (const auto& [number, call] : member.calls) numbers.insert(number);
  }
  for (const std::uint64_t number : numbers) {
    const std::vector<Variant> variants = variants_of(members, number);
    if (variants.size() < 2) continue;
    FlightFinding finding{.kind = Kind::kMismatch, .group = group, .collective = number};
    finding.text = "collective " + std::to_string(number) + " of " + group_text(flights, group) +
                   " differs between ranks:";
    const bool none_has_most = variants[0].ranks.size() == variants[1].ranks.size();
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const Variant& one = variants[i];
      finding.text += (i > 0 ? "; " : " ") + ranks_text(one.ranks) + " called " + one.words;
      if (i == 0 && !none_has_most) continue;
      finding.ranks.insert(finding.ranks.end(), one.ranks.begin(), one.ranks.end());
    }
    std::ranges::sort(finding.ranks);
    findings.push_back(std::move(finding));
    return;
  }
}

// Finds the first collective in which a rank is held up. Reports the ranks in it and the ranks
// behind.
void find_standing(const Flights& flights, const std::vector<Member>& members, std::uint64_t group,
                   std::vector<FlightFinding>& findings) {
  std::uint64_t earliest = std::numeric_limits<std::uint64_t>::max();
  const FlightEntry* call = nullptr;
  const RankFlight* who = nullptr;
  for (const Member& member : members) {
    for (const auto& [number, one] : member.calls) {
      if (!member.is_held_up(number) || (call && number >= earliest)) continue;
      earliest = number;
      call = one;
      who = member.flight;
    }
  }
  if (!call) return;
  std::vector<int> held_up;
  std::vector<int> late;
  std::string instead;
  for (const Member& member : members) {
    if (member.is_held_up(earliest)) held_up.push_back(member.flight->rank.value);
    if (member.last() >= earliest || member.is_unknown()) continue;
    late.push_back(member.flight->rank.value);
    if (late.size() > kMostInFull) continue;
    instead +=
        "; rank " + to_text(member.flight->rank) + ": " + doing_text(flights, *member.flight);
  }
  if (late.size() > kMostInFull) instead += "; ...";
  const std::string what = collective_text(flights, *call);
  const bool failed = call->ended_ns != 0;
  const std::string span = span_text(call->begun_ns, failed ? call->ended_ns : who->boot_ns);
  const std::string how_long = (failed ? " after " : " for ") + span;
  FlightFinding finding{.group = group, .collective = earliest};
  if (late.empty()) {
    finding.kind = Kind::kInProgress;
    finding.ranks = held_up;
    finding.text = failed ? what + " failed for " + ranks_text(held_up) + how_long
                          : ranks_text(held_up) + have(held_up) + " been in " + what + how_long;
    if (held_up.size() < members.size()) finding.text += "; the others have left it";
  } else {
    finding.kind = Kind::kBehind;
    finding.ranks = late;
    finding.text = ranks_text(late) + have(late) + " not come to " + what +
                   (failed ? ", which failed for " : ", where ") + ranks_text(held_up) +
                   (failed ? how_long : have(held_up) + (" waited " + span)) + instead;
  }
  findings.push_back(std::move(finding));
}

void find_members(const std::vector<Member>& members, std::uint64_t group,
                  std::vector<FlightFinding>& findings) {
  const FlightGroupFacts* first = nullptr;
  FlightFinding finding{.kind = Kind::kMembers, .group = group};
  for (const Member& member : members) {
    const FlightGroupFacts* facts = member.flight->group(group);
    if (!facts) continue;
    if (!first) first = facts;
    if (*facts == *first) continue;
    finding.ranks.push_back(member.flight->rank.value);
    if (!finding.text.empty()) continue;
    finding.text = "rank " + to_text(member.flight->rank) + " knows group " +
                   std::to_string(group) + " as '" + facts->name + "' of ranks " +
                   rank_ranges(facts->ranks) + ", others as '" + first->name + "' of ranks " +
                   rank_ranges(first->ranks);
  }
  if (!finding.ranks.empty()) findings.push_back(std::move(finding));
}

std::set<std::uint64_t> groups_in(const Flights& flights) {
  std::set<std::uint64_t> groups;
  for (const RankFlight& flight : flights) {
    for (const FlightEntry& call : flight.calls) groups.insert(call.group);
    for (const FlightGroupFacts& facts : flight.groups) groups.insert(facts.id);
  }
  return groups;
}

const FlightEntry* in_progress(const RankFlight& flight) {
  const auto found = std::ranges::find(flight.calls, 0u, &FlightEntry::ended_ns);
  return found == flight.calls.end() ? nullptr : &*found;
}

}  // namespace

std::string group_text(const Flights& flights, std::uint64_t group) {
  if (group == 0) return "the world";
  for (const RankFlight& flight : flights) {
    const FlightGroupFacts* facts = flight.group(group);
    if (!facts) continue;
    const std::string name = facts->name.empty() ? std::to_string(group) : facts->name;
    const bool all_are_listed = facts->ranks.size() == facts->size;
    return "group " + name + " (" +
           (all_are_listed ? ranks_text(facts->ranks) : std::to_string(facts->size) + " ranks") +
           ")";
  }
  return "group " + std::to_string(group);
}

std::string doing_text(const Flights& flights, const RankFlight& flight) {
  std::string text;
  if (!flight.lives) text = flight.state + ", ";
  if (flight.is_stopped) text = "stopped, ";
  const auto of = [&](const FlightEntry& call) {
    if (is_message(call.call)) return words_of(call);
    return collective_text(flights, call) + from_text(flight, call);
  };
  if (const FlightEntry* call = in_progress(flight)) {
    return text + "in " + of(*call) + " for " + span_text(call->begun_ns, flight.boot_ns);
  }
  if (flight.calls.empty()) return text + "in no call, and has made none";
  const FlightEntry& last = flight.calls.back();
  return text + "in no call; the last one, " + of(last) + ", " +
         (last.failed ? "failed " : "ended ") + span_text(last.ended_ns, flight.boot_ns) + " ago";
}

std::vector<FlightFinding> compare_flights(const Flights& given) {
  Flights flights = given;
  std::ranges::stable_sort(flights, {}, &RankFlight::rank);
  std::vector<FlightFinding> findings;
  for (const std::uint64_t group : groups_in(flights)) {
    const std::vector<Member> members = members_of(flights, group);
    find_mismatch(flights, members, group, findings);
    find_standing(flights, members, group, findings);
    find_members(members, group, findings);
  }
  for (const RankFlight& flight : flights) {
    if (flight.lives && !flight.is_stopped) continue;
    findings.push_back(
        {.kind = flight.lives ? Kind::kStopped : Kind::kEnded,
         .ranks = {flight.rank.value},
         .text = "rank " + to_text(flight.rank) + ": " + doing_text(flights, flight)});
  }
  std::ranges::stable_sort(findings, {}, &FlightFinding::kind);
  return findings;
}

}  // namespace ddprun
