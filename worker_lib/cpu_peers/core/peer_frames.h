// Frames: what the watches of different nodes send each other (cpu_peers/peer_watch.h).
//
// A frame is a FrameHead and a body. The body of a failure is its cause, that of a reply is a
// list. Both ends run the same build on machines of one kind, which the hello has checked. Pure;
// any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace ddprun {

enum class FrameType : std::uint32_t {
  kFailure,
  kLeave,
  kProgressQuery,
  kProgressReply,
  kNotesQuery,
  kNotesReply,
};

struct FrameHead {
  FrameType type = FrameType::kLeave;
  std::uint32_t body_bytes = 0;
  ErrorKind kind = ErrorKind::kPeerLost;  // of a failure, as in GroupFailure
  std::int32_t peer_rank = -1;
  std::int32_t reporter = -1;
  std::uint32_t padding = 0;
  std::uint64_t query = 0;  // the number of a query, which its reply repeats
};

// RankProgress: the last round that a rank entered, and its tick (cpu_shm/shared_progress.h).
struct RankProgress {
  int rank = -1;
  bool stopped = false;  // by a signal or a debugger
  std::uint64_t entered = 0;
  std::uint64_t tick = 0;
  std::string whereabouts;  // what the rank does according to its worker page; empty: it has none

  friend bool operator==(const RankProgress&, const RankProgress&) = default;
};

struct RankNote {
  int rank = -1;
  std::string text;

  friend bool operator==(const RankNote&, const RankNote&) = default;
};

// Convert the bodies of the replies. Decoding returns nullopt if the body is invalid.
std::string encode_progress(const std::vector<RankProgress>& ranks);
std::optional<std::vector<RankProgress>> decode_progress(const std::string& body);
std::string encode_notes(const std::vector<RankNote>& notes);
// Notes of ranks outside the world are invalid.
std::optional<std::vector<RankNote>> decode_notes(const std::string& body, int world_size);

}  // namespace ddprun
