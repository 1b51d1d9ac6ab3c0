// Compares the flight records of several ranks. Finds where their calls differ, and which ranks
// have not begun a collective that others wait in. Also finds what is in progress, and which
// ranks are stopped or have ended.
//
// All ranks of a group count its collectives alike, so those with the same number are one call.
// The first that differs between ranks is a mismatch: another collective, size, dtype, op or
// root. A rank is behind if it has not begun a collective in which others wait, or which failed
// for others. Durations come from each rank's own clock; clocks of different hosts are never
// compared. Pure; any thread.
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
    kBehind,      // `ranks` have not begun the call
    kStopped,     // the processes of `ranks` are stopped
    kEnded,       // the processes of `ranks` have ended
    kMembers,     // `ranks` have other members or another name for a group than the others
    kInProgress,  // `ranks` are in the call or it failed for them; no rank is behind
  };
  Kind kind = Kind::kInProgress;
  std::uint64_t group = 0;       // if the finding is about a collective or a group
  std::uint64_t collective = 0;  // if it is about a collective
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

// Returns the findings in the order of Kind, which puts the most informative first. Each group
// has at most one mismatch, one kBehind or kInProgress, and one kMembers.
std::vector<FlightFinding> compare_flights(const std::vector<RankFlight>& flights);

// Returns the name of a group: "the world", "group tp0 (ranks 0,2)", "group 7".
std::string group_text(const std::vector<RankFlight>& flights, std::uint64_t group);

// Describes what a rank does: "in all_reduce of 8 bytes (collective 3 of the world) since 2.0
// s", "in no call; ...".
std::string doing_text(const std::vector<RankFlight>& flights, const RankFlight& flight);

}  // namespace ddprun
