// Hang analysis: finds the ranks that keep the others waiting in a generation that hangs, from a
// snapshot of each rank. Value types and pure functions; any thread.
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

// FlightState: what the flight record of a worker says.
enum class FlightState {
  kUnknown,  // there is no record: the program does not use ddprun's worker library
  kOutside,  // it is in no call into its group
  kWaiting,  // it is in a call, or in one that has just failed
};

inline constexpr EnumNames<FlightState, 3> kFlightStateWords{{{FlightState::kUnknown, "unknown"},
                                                              {FlightState::kOutside, "outside"},
                                                              {FlightState::kWaiting, "waiting"}}};

// WorkerSnapshot: one worker as its agent saw it.
struct WorkerSnapshot {
  Rank rank{0};
  LocalRank local_rank{0};
  NodeRank node_rank{0};
  std::string host;
  int pid = 0;
  FlightState flight = FlightState::kUnknown;
  // The number, within its group, of the collective that it waits in, or of the last one that it
  // began.
  std::int64_t collective = 0;
  std::string call;         // kWaiting: the call, as text: "all_reduce of 4194304 bytes"
  int peer = -1;            // kWaiting in a send or recv: the peer's rank; -1: it waits for all
  Duration waited{};        // kWaiting: time in that call; otherwise: time since its last activity
  bool is_late = false;     // no activity for longer than --hang-timeout
  bool is_stopped = false;  // a signal or a debugger has stopped its process
  std::optional<std::int64_t> step = {};  // the last step that it reported
  // The group of `collective` if it is not the world (0): its number and its name. One snapshot
  // of each group has the group's ranks, if they are known.
  std::uint64_t group = 0;
  std::string group_name = {};
  std::vector<int> group_ranks = {};
  // kUnknown: the call of torch.distributed in which it waits, according to its stack. Empty:
  // none is known.
  std::string waits_in = {};
  std::string doing = {};                     // what the kernel says of the process
  std::vector<std::string> frames = {};       // its stack, the innermost last; at most kMaxFrames
  std::vector<std::string> stderr_tail = {};  // last lines, oldest first; at most kMaxTailLines

  friend bool operator==(const WorkerSnapshot&, const WorkerSnapshot&) = default;
};

// A message has at most this many snapshots of a node. Those that are in no call come first.
inline constexpr std::size_t kMaxSnapshots = 256;
// Limit for each text of a snapshot in a message.
inline constexpr std::size_t kMaxDoingBytes = 400;
// Limit for the lines of a verdict.
inline constexpr std::size_t kMaxSeenLines = 32;

// Keeps the first kMaxSnapshots snapshots, those that wait in no call first, and shortens their
// texts.
void keep_first_snapshots(std::vector<WorkerSnapshot>& snapshots);

// Returns the ranks that keep the others waiting, as ends of kind kHung, the lowest rank first.
// There is at least one.
// - Ranks wait in the same collective, but their calls differ: those whose call differs from the
//   most frequent one.
// - Ranks wait in a collective: those that have begun fewer and are in no call themselves. If
//   all ranks have begun it: those whose process is stopped. If ranks wait in another group
//   instead: those that they wait for.
// - Ranks wait in send or recv only: those they wait for.
// - There are no records, and stacks show that some ranks wait in torch.distributed: those that
//   do not.
// - No rank waits, according to records and stacks: those whose process is stopped, or else
//   those with the lowest step.
//
// If these rules select no rank, all are returned. REQUIRES: there is at least one snapshot.
std::vector<WorkerEnd> hung_ranks(const std::vector<WorkerSnapshot>& snapshots);

// Returns what each rank does, one line for all ranks that do the same.
std::vector<std::string> lines_of(const std::vector<WorkerSnapshot>& snapshots);

// Returns ranks as "0-3,7". REQUIRES: ranks are ascending.
std::string rank_ranges(const std::vector<int>& ranks);

}  // namespace ddprun
