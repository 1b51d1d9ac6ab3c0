#include "rendezvous/core/standstill.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/assert.h"

namespace ddprun {
namespace {

using Ranks = std::vector<int>;

std::string ranks_text(const Ranks& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + rank_ranges(ranks);
}

bool is_in_collective(const Sighting& one) {
  return one.flight == FlightState::kWaiting && one.peer < 0;
}

// "all_reduce of 4096 bytes (collective 57)".
std::string call_text(const Sighting& one) {
  if (one.peer >= 0) return one.call;
  return one.call + " (collective " + std::to_string(one.collective) + ")";
}

std::string what_it_does(const Sighting& one) {
  std::string text;
  switch (one.flight) {
    case FlightState::kWaiting: text = "in " + call_text(one); break;
    case FlightState::kOutside:
      text = one.collective == 0
                 ? "in no collective, and was in none"
                 : "in no collective; the last one was " + std::to_string(one.collective);
      break;
    case FlightState::kUnknown: text = "without a record of collectives"; break;
  }
  if (one.step) text += ", step " + std::to_string(*one.step);
  if (!one.doing.empty()) text += "; " + one.doing;
  return text;
}

WorkerEnd end_of(const Sighting& one, std::string message) {
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

// Whom those wait for who are in the earliest collective that anybody waits in.
std::vector<const Sighting*> behind(const std::vector<Sighting>& all, std::int64_t collective) {
  std::vector<const Sighting*> late;
  for (const Sighting& one : all) {
    const bool has_record = one.flight != FlightState::kUnknown;
    if (has_record && !is_in_collective(one) && one.collective < collective) late.push_back(&one);
  }
  const bool some_are_outside = std::any_of(late.begin(), late.end(), [](const Sighting* one) {
    return one->flight == FlightState::kOutside;
  });
  if (some_are_outside) {
    std::erase_if(late, [](const Sighting* one) { return one->flight != FlightState::kOutside; });
  }
  if (!late.empty()) return late;
  for (const Sighting& one : all) {
    if (one.flight == FlightState::kUnknown && one.is_late) late.push_back(&one);
  }
  return late;
}

struct Guilty {
  std::vector<const Sighting*> ranks;
  std::string why;  // follows "rank N hangs: "
};

Guilty of_collective(const std::vector<Sighting>& all, const Sighting& earliest) {
  Ranks waiting;
  Duration longest{};
  for (const Sighting& one : all) {
    if (!is_in_collective(one) || one.collective != earliest.collective) continue;
    waiting.push_back(one.rank.value);
    longest = std::max(longest, one.waited);
  }
  std::vector<const Sighting*> late = behind(all, earliest.collective);
  const std::string waits = ranks_text(waiting) + (waiting.size() == 1 ? " waits" : " wait");
  if (!late.empty()) {
    return {std::move(late), "it has not come to " + call_text(earliest) + ", where " + waits +
                                 " since " + to_text(longest)};
  }
  for (const Sighting& one : all) {
    if (is_in_collective(one) && one.collective == earliest.collective) late.push_back(&one);
  }
  const auto goes_on = [](const Sighting* one) { return !one->is_stopped; };
  if (!std::all_of(late.begin(), late.end(), goes_on)) {
    std::erase_if(late, goes_on);
    return {std::move(late), "it is stopped in " + call_text(earliest) + ", where " + waits +
                                 " since " + to_text(longest)};
  }
  return {std::move(late), "all that are known to take part are in " + call_text(earliest) +
                               ", which has not ended for " + to_text(longest)};
}

Guilty of_messages(const std::vector<Sighting>& all) {
  Guilty guilty;
  const Sighting* waits = nullptr;
  for (const Sighting& one : all) {
    if (one.flight != FlightState::kWaiting) continue;
    if (!waits) waits = &one;
    const auto peer = std::find_if(all.begin(), all.end(), [&](const Sighting& other) {
      return other.rank.value == one.peer && other.flight != FlightState::kWaiting;
    });
    if (peer == all.end()) continue;
    if (std::count(guilty.ranks.begin(), guilty.ranks.end(), &*peer) == 0) {
      guilty.ranks.push_back(&*peer);
    }
    if (guilty.why.empty()) {
      guilty.why = "rank " + to_text(one.rank) + " waits for it in " + call_text(one) + " since " +
                   to_text(one.waited);
    }
  }
  if (!guilty.ranks.empty()) return guilty;
  for (const Sighting& one : all) {
    if (one.flight == FlightState::kWaiting) guilty.ranks.push_back(&one);
  }
  guilty.why = "the ranks wait for each other: rank " + to_text(waits->rank) + " in " +
               call_text(*waits) + " since " + to_text(waits->waited);
  return guilty;
}

Guilty without_records(const std::vector<Sighting>& all) {
  Guilty guilty;
  std::optional<std::int64_t> lowest;
  Duration longest{};
  const bool some_are_late =
      std::any_of(all.begin(), all.end(), [](const Sighting& one) { return one.is_late; });
  for (const Sighting& one : all) {
    if (some_are_late && !one.is_late) continue;
    longest = std::max(longest, one.waited);
    if (one.step && (!lowest || *one.step < *lowest)) lowest = one.step;
    guilty.ranks.push_back(&one);
  }
  const auto goes_on = [](const Sighting* one) { return !one->is_stopped; };
  if (!std::all_of(guilty.ranks.begin(), guilty.ranks.end(), goes_on)) {
    std::erase_if(guilty.ranks, goes_on);
    guilty.why = "its process is stopped, and nothing was reported for " + to_text(longest);
    return guilty;
  }
  std::erase_if(guilty.ranks, [&](const Sighting* one) { return lowest && one->step != lowest; });
  guilty.why = "it has reported nothing for " + to_text(longest);
  return guilty;
}

Guilty guilty_of(const std::vector<Sighting>& all) {
  const Sighting* earliest = nullptr;
  bool anyone_waits = false;
  for (const Sighting& one : all) {
    anyone_waits = anyone_waits || one.flight == FlightState::kWaiting;
    if (!is_in_collective(one)) continue;
    if (!earliest || one.collective < earliest->collective) earliest = &one;
  }
  if (earliest) return of_collective(all, *earliest);
  return anyone_waits ? of_messages(all) : without_records(all);
}

}  // namespace

void keep_telling(std::vector<Sighting>& sightings) {
  std::stable_sort(sightings.begin(), sightings.end(), [](const Sighting& a, const Sighting& b) {
    return (a.flight != FlightState::kWaiting) > (b.flight != FlightState::kWaiting);
  });
  if (sightings.size() > kSightingsTold) sightings.resize(kSightingsTold);
  for (std::size_t i = 0; i < sightings.size(); ++i) {
    Sighting& one = sightings[i];
    one.host = clipped(std::move(one.host), kHostBytesShown);
    one.call = clipped(std::move(one.call), kMaxDoingBytes);
    one.doing = clipped(std::move(one.doing), kMaxDoingBytes);
    if (i >= kEndsInFull) {
      one.frames.clear();
      one.stderr_tail.clear();
    }
    keep_last_lines(one.frames, kMaxFrames);
    keep_last_lines(one.stderr_tail, kMaxTailLines);
  }
}

std::vector<WorkerEnd> hung_ranks(const std::vector<Sighting>& sightings) {
  DDPRUN_ASSERT(!sightings.empty(), "somebody was seen");
  std::vector<Sighting> all = sightings;
  std::sort(all.begin(), all.end(),
            [](const Sighting& a, const Sighting& b) { return a.rank < b.rank; });
  const Guilty guilty = guilty_of(all);
  std::vector<WorkerEnd> ends;
  for (const Sighting* one : guilty.ranks) {
    std::string message = guilty.why;
    if (one->step) message += "; its last step was " + std::to_string(*one->step);
    ends.push_back(end_of(*one, std::move(message)));
  }
  // They were noticed together; how long each has stood still says nothing of who was first.
  Duration longest{};
  for (const WorkerEnd& end : ends) longest = std::max(longest, end.age);
  for (WorkerEnd& end : ends) end.age = longest;
  return ends;
}

std::vector<std::string> lines_of(const std::vector<Sighting>& sightings) {
  struct Group {
    Ranks ranks;
    Duration longest{};
  };
  std::map<std::string, Group> groups;
  for (const Sighting& one : sightings) {
    Group& group = groups[what_it_does(one)];
    group.ranks.push_back(one.rank.value);
    group.longest = std::max(group.longest, one.waited);
  }
  std::vector<std::pair<std::string, Group>> sorted(groups.begin(), groups.end());
  for (auto& [what, group] : sorted) std::sort(group.ranks.begin(), group.ranks.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second.ranks.front() < b.second.ranks.front();
  });
  std::vector<std::string> lines;
  for (const auto& [what, group] : sorted) {
    if (lines.size() + 1 == kMaxSeenLines && sorted.size() > kMaxSeenLines) {
      lines.push_back("... and " + std::to_string(sorted.size() - lines.size()) + " more");
      break;
    }
    lines.push_back(
        clipped(ranks_text(group.ranks) + ": " + what + ", since " + to_text(group.longest),
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
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace ddprun
