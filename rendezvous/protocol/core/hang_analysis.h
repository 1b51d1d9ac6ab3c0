// HangAnalysis: what the ranks of a generation that hangs were seen doing, and which of them keep the
// others waiting. Value types and pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/enum_names.h"
#include "base/ids.h"
#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

// What the flight record of a worker says.
enum class FlightState {
  kUnknown,  // it keeps none: no program of ddprun's worker library
  kOutside,  // it is in no call into its group
  kWaiting,  // it is in one, or that has just failed
};

inline constexpr EnumNames<FlightState, 3> kFlightStateWords{{{FlightState::kUnknown, "unknown"},
                                                          {FlightState::kOutside, "outside"},
                                                          {FlightState::kWaiting, "waiting"}}};

// One worker, as its agent saw it.
struct WorkerSnapshot {
  Rank rank{0};
  LocalRank local_rank{0};
  NodeRank node_rank{0};
  std::string host;
  int pid = 0;
  FlightState flight = FlightState::kUnknown;
  // The collective that it waits in, or the last one that it has begun: the how-manyth of its group.
  std::int64_t collective = 0;
  std::string call;         // of kWaiting, in words: "all_reduce of 4194304 bytes"
  int peer = -1;            // of kWaiting in a send or recv: the other one; -1: it waits for all
  Duration waited{};        // of kWaiting: in that call; else: since something was done
  bool is_late = false;     // nothing was done for longer than --hang-timeout
  bool is_stopped = false;  // its process, by a signal or a debugger
  std::optional<std::int64_t> step = {};  // the last one that it has reported
  // That group, where it is not the world (0): its number, its name, and of one snapshot of it its ranks,
  // where they are known.
  std::uint64_t group = 0;
  std::string group_name = {};
  std::vector<int> group_ranks = {};
  // Of kUnknown: the call of torch.distributed in which it waits, by its stack; empty: none is known.
  std::string waits_in = {};
  std::string doing = {};                     // what the kernel says of it
  std::vector<std::string> frames = {};       // where it is, the innermost last; at most kMaxFrames
  std::vector<std::string> stderr_tail = {};  // last lines, oldest first; at most kMaxTailLines

  friend bool operator==(const WorkerSnapshot&, const WorkerSnapshot&) = default;
};

// A message tells of so many of a node at most, those first that are in no call.
inline constexpr std::size_t kSnapshotsTold = 256;
// Of one snapshot, when it is told to others.
inline constexpr std::size_t kMaxDoingBytes = 400;
// Lines of a verdict.
inline constexpr std::size_t kMaxSeenLines = 32;

// Keeps kSnapshotsTold of them and shortens what they say.
void keep_telling(std::vector<WorkerSnapshot>& snapshots);

// The ranks that keep the others waiting, as ends of kind kHung, the lowest first; at least one.
//   - Where ranks wait in a collective that is not the same for all of them: those that make another call
//     than most.
//   - Where ranks wait in a collective: those that have begun fewer, and are in no call themselves;
//     where all have come, those whose process is stopped. Of ranks that wait in another group instead,
//     those whom they wait for.
//   - Where ranks wait in send or recv only: those they wait for.
//   - Where there are no records, and stacks show that some wait in torch.distributed: those that do not.
//   - Where nobody waits, as far as records and stacks say: those whose process is stopped, else those with
//     the lowest step.
// Where these rules leave nobody, everybody is named. REQUIRES: there is at least one.
std::vector<WorkerEnd> hung_ranks(const std::vector<WorkerSnapshot>& snapshots);

// What each of them does, one line for those that do the same.
std::vector<std::string> lines_of(const std::vector<WorkerSnapshot>& snapshots);

// "0-3,7". REQUIRES: ascending.
std::string rank_ranges(const std::vector<int>& ranks);

}  // namespace ddprun
