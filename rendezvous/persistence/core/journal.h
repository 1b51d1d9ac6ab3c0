// The journal: how what outlives a service lies in a file, as bytes. A map of keys to values, and
// every change of it in the order in which it was made.
//
//   file     "ddprun journal 1\n", then frames, the oldest first
//   frame    ff 44 4a 46, u32 length, u32 crc, and `length` bytes of entries
//   entry    u32 length, key, u32 length, value; an empty value takes the key away
//
// Integers are little-endian. The crc is CRC-32C of the length and of the entries. A frame holds
// all that one write adds, and counts as a whole or not at all; the next one is written only when
// it is safe on the disk. So a crash can only damage the last frame. It was not acknowledged, and
// is cut. A damaged frame with a whole one behind it is no crash's work but the disk's, or somebody
// else's. What it said was acknowledged, so the journal is refused.
//
// A snapshot is a journal that says every key once. Keys and values must not contain ff, which text
// in UTF-8 never does: so nothing in an entry looks like the beginning of a frame.
//
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddprun {

inline constexpr std::size_t kMaxJournalFrameBytes = 64 << 20;

struct JournalEntry {
  std::string key;
  std::string value;  // empty: the key is gone
};

using JournalImage = std::map<std::string, std::string>;

// What the entries make of the image, in their order.
void apply_entries(std::span<const JournalEntry> entries, JournalImage& image);

// One frame. REQUIRES: its entries take kMaxJournalFrameBytes at most, and there are some.
std::string journal_frame(std::span<const JournalEntry> entries);
// What the entries take in a frame.
std::size_t journal_bytes(std::span<const JournalEntry> entries);

// A whole file that says this and nothing else.
std::string journal_snapshot(const JournalImage& image);

struct JournalReading {
  JournalImage image;
  std::size_t whole_bytes = 0;  // header and whole frames; what is behind them is to be cut off
};
// kCorrupt: the journal is damaged, and the cause says at which offset; kUnsupported: it is of
// another version. Takes memory only for what is there.
Result<JournalReading> read_journal(std::string_view bytes);

}  // namespace ddprun
