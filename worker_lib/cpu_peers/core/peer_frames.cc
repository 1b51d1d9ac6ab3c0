#include "worker_lib/cpu_peers/core/peer_frames.h"

#include <cstring>
#include <utility>

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

// Calls take(head, text) for each record of a body: a Head, and the text of head.bytes bytes that
// follows it. Returns false if the body ends inside a record, or if take() does.
template <class Head, class Take>
bool read_records(const std::string& body, Take take) {
  for (std::size_t at = 0; at < body.size();) {
    Head head;
    if (body.size() - at < sizeof head) return false;
    std::memcpy(&head, body.data() + at, sizeof head);
    at += sizeof head;
    if (head.bytes > body.size() - at || !take(head, body.substr(at, head.bytes))) return false;
    at += head.bytes;
  }
  return true;
}

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
  const bool is_whole = read_records<ProgressHead>(body, [&](const auto& head, std::string text) {
    ranks.push_back({.rank = head.rank,
                     .stopped = head.stopped != 0,
                     .entered = head.entered,
                     .tick = head.tick,
                     .whereabouts = std::move(text)});
    return true;
  });
  return is_whole ? std::optional(std::move(ranks)) : std::nullopt;
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
  const bool is_whole = read_records<NoteHead>(body, [&](const auto& head, std::string text) {
    if (head.rank < 0 || head.rank >= world_size) return false;
    notes.push_back({head.rank, std::move(text)});
    return true;
  });
  return is_whole ? std::optional(std::move(notes)) : std::nullopt;
}

}  // namespace ddprun
