#include "rendezvous/persistence/core/journal.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "base/assert.h"
#include "base/concat.h"
#include "base/crc32c.h"
#include "rendezvous/store/core/wire_format.h"

namespace ddprun {
namespace {

constexpr std::string_view kMagic = "ddprun journal ";
constexpr std::string_view kHeader = "ddprun journal 1\n";
constexpr std::string_view kFrameMagic =
    "\xff"
    "DJF";
constexpr std::size_t kNumberBytes = 4;
constexpr std::size_t kFrameHeaderBytes = kFrameMagic.size() + 2 * kNumberBytes;
// A snapshot begins a new frame after this many bytes, so that no frame comes near the limit.
constexpr std::size_t kSnapshotFrameBytes = 1 << 20;

void put_text(std::string& out, const std::string& text) {
  put_u32(out, static_cast<std::uint32_t>(text.size()));
  out += text;
}

std::optional<std::string_view> take_text(std::string_view& bytes) {
  if (bytes.size() < kNumberBytes) return std::nullopt;
  const std::size_t length = get_u32(bytes);
  bytes.remove_prefix(kNumberBytes);
  if (bytes.size() < length) return std::nullopt;
  const std::string_view text = bytes.substr(0, length);
  bytes.remove_prefix(length);
  return text;
}

// Returns the entries of the whole frame that begins here; nullopt: no whole frame begins
// here.
std::optional<std::string_view> frame_at(std::string_view bytes) {
  if (bytes.size() < kFrameHeaderBytes || !bytes.starts_with(kFrameMagic)) return std::nullopt;
  const std::string_view length_bytes = bytes.substr(kFrameMagic.size(), kNumberBytes);
  const std::size_t length = get_u32(length_bytes);
  if (length > kMaxJournalFrameBytes || length > bytes.size() - kFrameHeaderBytes) {
    return std::nullopt;
  }
  const std::string_view entries = bytes.substr(kFrameHeaderBytes, length);
  if (crc32c({length_bytes, entries}) != get_u32(bytes.substr(kFrameMagic.size() + kNumberBytes))) {
    return std::nullopt;
  }
  return entries;
}

std::optional<std::size_t> whole_frame_from(std::string_view bytes, std::size_t offset) {
  while ((offset = bytes.find(kFrameMagic, offset)) != std::string_view::npos) {
    if (frame_at(bytes.substr(offset))) return offset;
    ++offset;
  }
  return std::nullopt;
}

// Applies encoded entries. Returns false if the bytes are not entries.
bool apply_bytes(std::string_view bytes, JournalImage& image) {
  while (!bytes.empty()) {
    const auto key = take_text(bytes);
    const auto value = key ? take_text(bytes) : std::nullopt;
    if (!value) return false;
    const JournalEntry entry{std::string(*key), std::string(*value)};
    apply_entries({&entry, 1}, image);
  }
  return true;
}

Error bad(ErrorKind kind, std::string cause) {
  return Error{.kind = kind, .doing = "read the journal", .cause = std::move(cause)};
}

Error damaged(std::size_t offset, const std::string& why) {
  return bad(ErrorKind::kCorrupt, concat("it is damaged at offset ", offset, ": ", why));
}

}  // namespace

void apply_entries(std::span<const JournalEntry> entries, JournalImage& image) {
  for (const JournalEntry& entry : entries) {
    if (entry.value.empty()) {
      image.erase(entry.key);
    } else {
      image[entry.key] = entry.value;
    }
  }
}

std::size_t journal_bytes(std::span<const JournalEntry> entries) {
  std::size_t bytes = 0;
  for (const JournalEntry& entry : entries) {
    bytes += 2 * kNumberBytes + entry.key.size() + entry.value.size();
  }
  return bytes;
}

std::string journal_frame(std::span<const JournalEntry> entries) {
  const std::size_t size = journal_bytes(entries);
  DDPRUN_ASSERT(size > 0 && size <= kMaxJournalFrameBytes, "a frame has entries, within its limit");
  std::string length;
  put_u32(length, static_cast<std::uint32_t>(size));
  std::string body;
  body.reserve(size);
  for (const JournalEntry& entry : entries) {
    put_text(body, entry.key);
    put_text(body, entry.value);
  }
  std::string frame(kFrameMagic);
  frame.reserve(kFrameHeaderBytes + size);
  frame += length;
  put_u32(frame, crc32c({length, body}));
  return frame += body;
}

std::string journal_snapshot(const JournalImage& image) {
  std::string bytes(kHeader);
  std::vector<JournalEntry> frame;
  const auto write_frame = [&] {
    if (!frame.empty()) bytes += journal_frame(frame);
    frame.clear();
  };
  std::size_t in_frame = 0;
  for (const auto& [key, value] : image) {
    if (in_frame > kSnapshotFrameBytes) {
      write_frame();
      in_frame = 0;
    }
    frame.push_back({key, value});
    in_frame += journal_bytes({&frame.back(), 1});
  }
  write_frame();
  return bytes;
}

Result<JournalReading> read_journal(std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) return damaged(0, "not the beginning of a journal");
  if (!bytes.starts_with(kHeader)) {
    return bad(ErrorKind::kUnsupported, "its version is not the one that this program supports, 1");
  }
  JournalReading reading{.image = {}, .whole_bytes = kHeader.size()};
  while (reading.whole_bytes < bytes.size()) {
    const std::size_t offset = reading.whole_bytes;
    const std::optional<std::string_view> entries = frame_at(bytes.substr(offset));
    if (!entries) {
      const std::optional<std::size_t> next = whole_frame_from(bytes, offset + 1);
      if (!next) break;  // the last write was interrupted
      return damaged(offset, concat("a whole frame follows at ", *next,
                                    ", so this is not the end of a write that was cut short"));
    }
    if (!apply_bytes(*entries, reading.image)) return damaged(offset, "a frame has no entries");
    reading.whole_bytes += kFrameHeaderBytes + entries->size();
  }
  return reading;
}

}  // namespace ddprun
