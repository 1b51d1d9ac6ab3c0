// Journal: the bytes of the file that keeps a service's state across restarts. It holds a map
// of keys to values as the changes of that map, in the order in which they were made.
//
//   file     "ddprun journal 1\n", then frames, the oldest first
//   frame    ff 44 4a 46, u32 length, u32 crc, and `length` bytes of entries
//   entry    u32 length, key, u32 length, value; an empty value removes the key
//
// Integers are little-endian. The crc is CRC-32C of the length and of the entries. A frame
// holds all that one write adds, and counts as a whole or not at all. The next frame is
// written only after this one is durable. So a crash can damage only the last frame. That
// frame was not acknowledged, and it is cut off. A damaged frame with a whole one after it
// cannot come from a crash. The disk or another program has damaged it. Its contents were
// acknowledged, so the journal is refused.
//
// A snapshot is a journal that has every key once. Keys and values must not contain the byte
// ff, which UTF-8 text never does. So no bytes of an entry look like the beginning of a frame.
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
  std::string value;  // empty: the key is removed
};

using JournalImage = std::map<std::string, std::string>;

// Applies the entries to the image, in their order.
void apply_entries(std::span<const JournalEntry> entries, JournalImage& image);

// Returns one frame. REQUIRES: there are entries, and they take at most kMaxJournalFrameBytes.
std::string journal_frame(std::span<const JournalEntry> entries);
// Returns the bytes that the entries take in a frame.
std::size_t journal_bytes(std::span<const JournalEntry> entries);

// Returns a whole file with exactly this image.
std::string journal_snapshot(const JournalImage& image);

struct JournalReading {
  JournalImage image;
  std::size_t whole_bytes = 0;  // header and whole frames; the bytes after them are to be cut off
};
// Reads a whole file. kCorrupt: the journal is damaged; the cause gives the offset.
// kUnsupported: it has another version. Memory use is bounded by the size of `bytes`.
Result<JournalReading> read_journal(std::string_view bytes);

}  // namespace ddprun
