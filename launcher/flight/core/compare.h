// What the flight records of several ranks say together: where their calls differ, who has not come
// to what others wait in, what is in progress, who is stopped or has ended.
//
// Of a group's collectives, which all its ranks count alike, those of the same number are one call. The
// first that is not the same for all is a mismatch: another collective, size, dtype, op or root. A rank
// is behind where others wait in a collective, or failed in one, that it has not begun. Times are told by
// each rank's own clock; clocks of different hosts are never compared. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "launcher/flight/core/record.h"

namespace ddprun {

struct FlightFinding {
  enum class Kind {
    kMismatch,    // `ranks` made another call than most
    kBehind,      // `ranks` have not come to it
    kStopped,     // the processes of `ranks` are stopped
    kEnded,       // they have ended
    kMembers,     // they take a group for another one than others do
    kInProgress,  // `ranks` are in it, and all have come
  };
  Kind kind = Kind::kInProgress;
  std::uint64_t group = 0;       // where it is about a collective, or a group
  std::uint64_t collective = 0;  // where it is about one
  std::vector<int> ranks;        // ascending
  std::string text;              // one line

  friend bool operator==(const FlightFinding&, const FlightFinding&) = default;
};

inline constexpr EnumNames<FlightFinding::Kind, 6> kFlightFindingWords{
    {{FlightFinding::Kind::kMismatch, "mismatch"},
     {FlightFinding::Kind::kBehind, "behind"},
     {FlightFinding::Kind::kStopped, "stopped"},
     {FlightFinding::Kind::kEnded, "ended"},
     {FlightFinding::Kind::kMembers, "members"},
     {FlightFinding::Kind::kInProgress, "in_progress"}}};

// The most telling first, in the order of Kind. At most one mismatch, one of kBehind or kInProgress and one of
// kMembers for each group.
std::vector<FlightFinding> compare_flights(const std::vector<RankFlight>& flights);

// "the world", "group tp0 (ranks 0,2)", "group 7".
std::string group_text(const std::vector<RankFlight>& flights, std::uint64_t group);

// What a rank does: "in all_reduce of 8 bytes (collective 3 of the world) since 2.0 s", "in no call; ...".
std::string doing_text(const std::vector<RankFlight>& flights, const RankFlight& flight);

}  // namespace ddprun
