#include "worker_lib/cpu_peers/core/peer_frames.h"

#include <cstring>

namespace ddprun {
namespace {

// Precedes the whereabouts of each rank.
struct ProgressHead {
  std::int32_t rank = -1;
  std::uint32_t stopped = 0;
  std::uint64_t entered = 0;
  std::uint64_t tick = 0;
  std::uint64_t bytes = 0;
};

// Precedes each note.
struct NoteHead {
  std::int32_t rank = -1;
  std::uint32_t bytes = 0;
};

}  // namespace

std::string encode_progress(const std::vector<RankProgress>& ranks) {
  std::string body;
  for (const RankProgress& one : ranks) {
    const ProgressHead head{.rank = one.rank,
                            .stopped = one.stopped,
                            .entered = one.entered,
                            .tick = one.tick,
                            .bytes = one.whereabouts.size()};
    body.append(reinterpret_cast<const char*>(&head), sizeof head);
    body += one.whereabouts;
  }
  return body;
}

std::optional<std::vector<RankProgress>> decode_progress(const std::string& body) {
  std::vector<RankProgress> ranks;
  for (std::size_t at = 0; at < body.size();) {
    ProgressHead head;
    if (body.size() - at < sizeof head) return std::nullopt;
    std::memcpy(&head, body.data() + at, sizeof head);
    at += sizeof head;
    if (head.bytes > body.size() - at) return std::nullopt;
    ranks.push_back({.rank = head.rank,
                     .stopped = head.stopped != 0,
                     .entered = head.entered,
                     .tick = head.tick,
                     .whereabouts = body.substr(at, head.bytes)});
    at += head.bytes;
  }
  return ranks;
}

std::string encode_notes(const std::vector<RankNote>& notes) {
  std::string body;
  for (const RankNote& one : notes) {
    const NoteHead head{.rank = one.rank, .bytes = static_cast<std::uint32_t>(one.text.size())};
    body.append(reinterpret_cast<const char*>(&head), sizeof head);
    body += one.text;
  }
  return body;
}

std::optional<std::vector<RankNote>> decode_notes(const std::string& body, int world_size) {
  std::vector<RankNote> notes;
  for (std::size_t at = 0; at < body.size();) {
    NoteHead head;
    if (body.size() - at < sizeof head) return std::nullopt;
    std::memcpy(&head, body.data() + at, sizeof head);
    at += sizeof head;
    const bool makes_sense =
        head.bytes <= body.size() - at && head.rank >= 0 && head.rank < world_size;
    if (!makes_sense) return std::nullopt;
    notes.push_back({head.rank, body.substr(at, head.bytes)});
    at += head.bytes;
  }
  return notes;
}

}  // namespace ddprun
