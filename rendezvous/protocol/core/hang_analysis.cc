#include "rendezvous/protocol/core/hang_analysis.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/assert.h"
#include "base/concat.h"

namespace ddprun {
namespace {

using Ranks = std::vector<int>;

std::string ranks_text(const Ranks& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + rank_ranges(ranks);
}

// Ranks that do the same.
struct Waiting {
  Ranks ranks;
  Duration longest{};

  void add(const WorkerSnapshot& one) {
    ranks.push_back(one.rank.value);
    longest = std::max(longest, one.waited);
  }
  // Returns ", where ranks 0,2 have waited 60.0 s".
  std::string text() const {
    return concat(", where ", ranks_text(ranks), ranks.size() == 1 ? " has" : " have", " waited ",
                  longest);
  }
};

bool is_in_collective(const WorkerSnapshot& one) {
  return one.flight == FlightState::kWaiting && one.peer < 0;
}

// Returns " of group tp0"; empty for the world.
std::string of_group(const WorkerSnapshot& one) {
  if (one.group == 0) return "";
  return " of group " + (one.group_name.empty() ? std::to_string(one.group) : one.group_name);
}

// Returns "all_reduce of 4096 bytes (collective 57)".
std::string call_text(const WorkerSnapshot& one) {
  if (one.peer >= 0) return one.call;
  return concat(one.call, " (collective ", one.collective, of_group(one), ")");
}

std::string what_it_does(const WorkerSnapshot& one) {
  std::string text;
  switch (one.flight) {
    case FlightState::kWaiting: text = "in " + call_text(one); break;
    case FlightState::kOutside:
      text = one.collective == 0
                 ? "in no collective, and has been in none"
                 : concat("in no collective; the last one was ", one.collective, of_group(one));
      if (!one.waits_in.empty()) text += "; waiting in " + one.waits_in;
      break;
    case FlightState::kUnknown:
      text =
          one.waits_in.empty() ? "without a record of collectives" : "waiting in " + one.waits_in;
      break;
  }
  if (one.step) text += concat(", step ", *one.step);
  if (!one.doing.empty()) text += "; " + one.doing;
  return text;
}

WorkerEnd end_of(const WorkerSnapshot& one, std::string message) {
  WorkerEnd end{.kind = EndKind::kHung,
                .rank = one.rank,
                .local_rank = one.local_rank,
                .node_rank = one.node_rank,
                .host = one.host,
                .pid = one.pid,
                .message = std::move(message),
                .frames = one.frames,
                .stderr_tail = one.stderr_tail};
  end.step = one.step;
  end.age = one.waited;
  return end;
}

// Returns the snapshot in the lowest collective of this group; nullptr: no rank is in one.
const WorkerSnapshot* earliest_of(const std::vector<WorkerSnapshot>& all, std::uint64_t group) {
  const WorkerSnapshot* earliest = nullptr;
  for (const WorkerSnapshot& one : all) {
    if (!is_in_collective(one) || one.group != group) continue;
    if (!earliest || one.collective < earliest->collective) earliest = &one;
  }
  return earliest;
}

// Returns true if the rank is in the group, as far as the snapshots show. If the group's ranks
// are unknown, only those seen in it count.
bool is_of_group(const std::vector<WorkerSnapshot>& all, const WorkerSnapshot& one,
                 std::uint64_t group) {
  if (group == 0 || one.group == group) return true;
  return std::ranges::any_of(all, [&](const WorkerSnapshot& other) {
    return other.group == group && std::ranges::count(other.group_ranks, one.rank.value) > 0;
  });
}

// Returns the ranks that block this collective, which is the earliest of its group in which a
// rank waits. A rank that was not seen in this group counts as late, because its progress there
// is unknown.
std::vector<const WorkerSnapshot*> behind(const std::vector<WorkerSnapshot>& all,
                                          const WorkerSnapshot& waiting) {
  std::vector<const WorkerSnapshot*> late;
  for (const WorkerSnapshot& one : all) {
    if (!is_of_group(all, one, waiting.group)) continue;
    const bool has_record = one.flight != FlightState::kUnknown;
    const bool is_elsewhere = one.group != waiting.group;
    const bool has_begun_fewer = !is_in_collective(one) && one.collective < waiting.collective;
    if (has_record && (is_elsewhere || has_begun_fewer)) late.push_back(&one);
  }
  const auto is_outside = [](const WorkerSnapshot* one) {
    return one->flight == FlightState::kOutside;
  };
  if (std::ranges::any_of(late, is_outside)) {
    std::erase_if(late, [&](const WorkerSnapshot* one) { return !is_outside(one); });
  }
  // A message of gloo has no record: the stack shows that the rank waits for another one.
  const auto waits = [&](const WorkerSnapshot* one) {
    return is_outside(one) && !one->waits_in.empty();
  };
  if (!std::ranges::all_of(late, waits)) std::erase_if(late, waits);
  if (!late.empty()) return late;
  for (const WorkerSnapshot& one : all) {
    const bool is_unknown = one.flight == FlightState::kUnknown && one.waits_in.empty();
    if (is_unknown && one.is_late) late.push_back(&one);
  }
  return late;
}

// Returns what must be the same for all ranks of a collective. In all_to_all, each rank may have
// a share of another size.
std::string_view what_all_call(const WorkerSnapshot& one) {
  const std::string_view call = one.call;
  return call.starts_with("all_to_all") ? call.substr(0, call.find(' ')) : call;
}

// Removes the ranks whose process goes on, if that of another one is stopped. Returns whether one
// is stopped.
bool keep_stopped(std::vector<const WorkerSnapshot*>& ranks) {
  const auto goes_on = [](const WorkerSnapshot* one) { return !one->is_stopped; };
  if (std::ranges::all_of(ranks, goes_on)) return false;
  std::erase_if(ranks, goes_on);
  return true;
}

struct Guilty {
  std::vector<const WorkerSnapshot*> ranks;
  std::string why;  // follows "rank N hangs: "
};

// Returns the ranks whose call differs from the most frequent one; nullopt if all ranks of the
// collective make the same call.
std::optional<Guilty> of_mismatch(const std::vector<const WorkerSnapshot*>& waiting) {
  std::map<std::string_view, std::vector<const WorkerSnapshot*>> by_call;
  for (const WorkerSnapshot* one : waiting) by_call[what_all_call(*one)].push_back(one);
  if (by_call.size() < 2) return std::nullopt;
  const auto most = std::ranges::max_element(
      by_call, [](auto& a, auto& b) { return a.second.size() < b.second.size(); });
  const auto as_many = std::ranges::count_if(
      by_call, [&](const auto& one) { return one.second.size() == most->second.size(); });
  Guilty guilty;
  Duration longest{};
  std::string calls;
  for (const auto& [call, ranks] : by_call) {
    Ranks numbers;
    for (const WorkerSnapshot* one : ranks) {
      numbers.push_back(one->rank.value);
      longest = std::max(longest, one->waited);
      if (as_many > 1 || call != most->first) guilty.ranks.push_back(one);
    }
    calls += (calls.empty() ? "" : ", ") + ranks_text(numbers) +
             (numbers.size() == 1 ? " is" : " are") + " in " + ranks.front()->call;
  }
  std::ranges::sort(guilty.ranks, [](const WorkerSnapshot* a, const WorkerSnapshot* b) {
    return a->rank < b->rank;
  });
  guilty.why = concat("as collective ", waiting.front()->collective, of_group(*waiting.front()),
                      " ", calls, ", for ", longest);
  return guilty;
}

// groups: the groups visited so far. In each, a rank waits for one that waits in the next.
Guilty of_collective(const std::vector<WorkerSnapshot>& all, const WorkerSnapshot& earliest,
                     std::set<std::uint64_t> groups) {
  std::vector<const WorkerSnapshot*> in_it;
  Waiting waiting;
  for (const WorkerSnapshot& one : all) {
    const bool is_in_it = is_in_collective(one) && one.group == earliest.group &&
                          one.collective == earliest.collective;
    if (!is_in_it) continue;
    in_it.push_back(&one);
    waiting.add(one);
  }
  if (std::optional<Guilty> guilty = of_mismatch(in_it)) return *guilty;
  std::vector<const WorkerSnapshot*> late = behind(all, earliest);
  groups.insert(earliest.group);
  for (const WorkerSnapshot* one : late) {
    if (!is_in_collective(*one) || groups.contains(one->group)) continue;
    return of_collective(all, *earliest_of(all, one->group), std::move(groups));
  }
  const std::string waited = waiting.text();
  if (!late.empty()) {
    return {std::move(late), "it has not come to " + call_text(earliest) + waited};
  }
  if (keep_stopped(in_it)) {
    return {std::move(in_it), "it is stopped in " + call_text(earliest) + waited};
  }
  return {std::move(in_it), concat("all known participants are in ", call_text(earliest),
                                   ", which has not ended for ", waiting.longest)};
}

Guilty of_messages(const std::vector<WorkerSnapshot>& all) {
  Guilty guilty;
  const WorkerSnapshot* waits = nullptr;
  for (const WorkerSnapshot& one : all) {
    if (one.flight != FlightState::kWaiting) continue;
    if (!waits) waits = &one;
    const auto peer = std::ranges::find_if(all, [&](const WorkerSnapshot& other) {
      return other.rank.value == one.peer && other.flight != FlightState::kWaiting;
    });
    if (peer == all.end()) continue;
    if (std::ranges::count(guilty.ranks, &*peer) == 0) {
      guilty.ranks.push_back(&*peer);
    }
    if (guilty.why.empty()) {
      guilty.why =
          concat("rank ", one.rank, " has waited for it in ", call_text(one), " for ", one.waited);
    }
  }
  if (!guilty.ranks.empty()) return guilty;
  for (const WorkerSnapshot& one : all) {
    if (one.flight == FlightState::kWaiting) guilty.ranks.push_back(&one);
  }
  guilty.why = concat("the ranks wait for each other: rank ", waits->rank, " in ",
                      call_text(*waits), " for ", waits->waited);
  return guilty;
}

// Returns "torch.distributed.all_reduce, where ranks 0,2 have waited 60.0 s", for each call.
std::string distributed_waits(const std::vector<WorkerSnapshot>& all) {
  std::map<std::string_view, Waiting> by_call;
  for (const WorkerSnapshot& one : all) {
    if (!one.waits_in.empty()) by_call[one.waits_in].add(one);
  }
  std::string text;
  for (const auto& [call, waiting] : by_call) {
    text += (text.empty() ? "" : ", nor to ") + std::string(call) + waiting.text();
  }
  return text;
}

Guilty without_records(const std::vector<WorkerSnapshot>& all) {
  Guilty guilty;
  std::optional<std::int64_t> lowest;
  Duration longest{};
  const auto waits = [](const WorkerSnapshot& one) { return !one.waits_in.empty(); };
  const bool some_wait = std::ranges::any_of(all, waits);
  const bool all_wait = std::ranges::all_of(all, waits);
  const auto is_candidate = [&](const WorkerSnapshot& one) { return all_wait || !waits(one); };
  // If others wait for a rank, it is late, no matter when it was last active.
  const bool some_are_late =
      !some_wait && std::ranges::any_of(all, [](const WorkerSnapshot& one) { return one.is_late; });
  for (const WorkerSnapshot& one : all) {
    if (!is_candidate(one) || (some_are_late && !one.is_late)) continue;
    longest = std::max(longest, one.waited);
    if (one.step && (!lowest || *one.step < *lowest)) lowest = one.step;
    guilty.ranks.push_back(&one);
  }
  if (all_wait) {
    guilty.why =
        concat("all ranks that were seen wait in torch.distributed, and nothing was reported for ",
               longest);
    return guilty;
  }
  if (keep_stopped(guilty.ranks)) {
    guilty.why = concat("its process is stopped, and nothing was reported for ", longest);
    return guilty;
  }
  if (some_wait) {
    guilty.why = "it has not come to " + distributed_waits(all);
    return guilty;
  }
  std::erase_if(guilty.ranks,
                [&](const WorkerSnapshot* one) { return lowest && one->step != lowest; });
  guilty.why = concat("it has reported nothing for ", longest);
  return guilty;
}

// Starts from the world's collectives, or from those of the group with the lowest number.
Guilty guilty_of(const std::vector<WorkerSnapshot>& all) {
  std::optional<std::uint64_t> group;
  bool anyone_waits = false;
  for (const WorkerSnapshot& one : all) {
    anyone_waits = anyone_waits || one.flight == FlightState::kWaiting;
    if (is_in_collective(one)) group = std::min(group.value_or(one.group), one.group);
  }
  if (group) return of_collective(all, *earliest_of(all, *group), {});
  return anyone_waits ? of_messages(all) : without_records(all);
}

}  // namespace

void keep_first_snapshots(std::vector<WorkerSnapshot>& snapshots) {
  const auto waits = [](const WorkerSnapshot& one) {
    return one.flight == FlightState::kWaiting || !one.waits_in.empty();
  };
  std::ranges::stable_sort(snapshots, [&](const WorkerSnapshot& a, const WorkerSnapshot& b) {
    return waits(a) < waits(b);
  });
  if (snapshots.size() > kMaxSnapshots) snapshots.resize(kMaxSnapshots);
  std::set<std::uint64_t> told_groups;
  for (std::size_t i = 0; i < snapshots.size(); ++i) {
    WorkerSnapshot& one = snapshots[i];
    if (!told_groups.insert(one.group).second) one.group_ranks.clear();
    one.host = clipped(std::move(one.host), kHostBytesShown);
    for (std::string* text : {&one.group_name, &one.call, &one.doing, &one.waits_in}) {
      *text = clipped(std::move(*text), kMaxDoingBytes);
    }
    if (i >= kEndsInFull) {
      one.frames.clear();
      one.stderr_tail.clear();
    }
    keep_last_lines(one.frames, kMaxFrames);
    keep_last_lines(one.stderr_tail, kMaxTailLines);
  }
}

std::vector<WorkerEnd> hung_ranks(const std::vector<WorkerSnapshot>& snapshots) {
  DDPRUN_ASSERT(!snapshots.empty(), "there is a snapshot");
  std::vector<WorkerSnapshot> all = snapshots;
  std::ranges::sort(
      all, [](const WorkerSnapshot& a, const WorkerSnapshot& b) { return a.rank < b.rank; });
  const Guilty guilty = guilty_of(all);
  std::vector<WorkerEnd> ends;
  for (const WorkerSnapshot* one : guilty.ranks) {
    std::string message = guilty.why;
    if (one->step) message += concat("; its last step was ", *one->step);
    ends.push_back(end_of(*one, std::move(message)));
  }
  // The ranks were noticed together. How long each was inactive does not tell which was first.
  Duration longest{};
  for (const WorkerEnd& end : ends) longest = std::max(longest, end.age);
  for (WorkerEnd& end : ends) end.age = longest;
  return ends;
}

std::vector<std::string> lines_of(const std::vector<WorkerSnapshot>& snapshots) {
  std::map<std::string, Waiting> groups;
  for (const WorkerSnapshot& one : snapshots) groups[what_it_does(one)].add(one);
  std::vector<std::pair<std::string, Waiting>> sorted(groups.begin(), groups.end());
  for (auto& [what, group] : sorted) std::sort(group.ranks.begin(), group.ranks.end());
  std::ranges::sort(sorted, [](const auto& a, const auto& b) {
    return a.second.ranks.front() < b.second.ranks.front();
  });
  std::vector<std::string> lines;
  for (const auto& [what, group] : sorted) {
    if (lines.size() + 1 == kMaxSeenLines && sorted.size() > kMaxSeenLines) {
      lines.push_back(concat("... and ", sorted.size() - lines.size(), " more"));
      break;
    }
    lines.push_back(clipped(concat(ranks_text(group.ranks), ": ", what, ", for ", group.longest),
                            kMaxMessageBytes));
  }
  return lines;
}

std::string rank_ranges(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(ranks[i]);
    if (last > i) text += concat("-", ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace ddprun
