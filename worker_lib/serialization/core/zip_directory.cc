#include "worker_lib/serialization/core/zip_directory.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <optional>
#include <string_view>

#include "base/concat.h"
#include "base/is_control.h"
#include "worker_lib/serialization/core/crc32.h"
#include "worker_lib/serialization/core/little_endian.h"
#include "worker_lib/serialization/core/zip_format.h"

namespace ddprun {
namespace {

constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kLocatorBytes = 20;
constexpr std::size_t kEnd64Bytes = 56;
constexpr std::size_t kEntryBytes = 46;
constexpr std::size_t kMaxComment = 0xffff;
constexpr std::uint16_t kEncrypted = 1;
// Of a search. By chance, few of a million names need more.
constexpr std::size_t kMostSteps = 64;

Error corrupt(std::string cause) {
  return {.kind = ErrorKind::kCorrupt, .doing = "read the zip archive", .cause = std::move(cause)};
}
Error unsupported(std::string cause) {
  return {
      .kind = ErrorKind::kUnsupported, .doing = "read the zip archive", .cause = std::move(cause)};
}

// A part of the archive; its size was checked to hold the fields that are read.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}
  std::uint64_t u16(std::size_t at) const { return read_little_endian(bytes_.substr(at, 2)); }
  std::uint64_t u32(std::size_t at) const { return read_little_endian(bytes_.substr(at, 4)); }
  std::uint64_t u64(std::size_t at) const { return read_little_endian(bytes_.substr(at, 8)); }
  bool is(std::string_view signature) const { return bytes_.starts_with(signature); }

 private:
  std::string_view bytes_;
};

// Returns a part; nullopt if it reaches beyond the archive.
std::optional<std::string_view> part(std::string_view archive, std::uint64_t at,
                                     std::uint64_t bytes) {
  if (at > archive.size() || bytes > archive.size() - at) return std::nullopt;
  return archive.substr(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes));
}

struct Directory {
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;
};

// Finds the end record. It is last; only a comment may follow it.
Result<Directory> find_directory(std::string_view archive, const ReadPart& read) {
  if (archive.size() < kEndBytes) return corrupt("it is too short for one");
  const std::size_t tail_bytes = std::min(archive.size(), kLocatorBytes + kEndBytes + kMaxComment);
  const auto tail = read(archive.substr(archive.size() - tail_bytes));
  if (!tail) return tail.error();
  const std::size_t last = tail->size() - kEndBytes;
  for (std::size_t comment = 0; comment <= std::min(last, kMaxComment); ++comment) {
    const std::size_t at = last - comment;
    const Fields end(tail->substr(at));
    if (!end.is("PK\5\6") || end.u16(20) != comment) continue;
    if (at >= kLocatorBytes) {
      const Fields locator(tail->substr(at - kLocatorBytes));
      if (locator.is("PK\6\7")) {
        const auto place = part(archive, locator.u64(8), kEnd64Bytes);
        if (!place) return corrupt("its zip64 end record is missing");
        const auto end64 = read(*place);
        if (!end64) return end64.error();
        const Fields fields(*end64);
        if (!fields.is("PK\6\6")) return corrupt("its zip64 end record is missing");
        return Directory{fields.u64(48), fields.u64(40), fields.u64(32)};
      }
    }
    return Directory{end.u32(16), end.u32(12), end.u16(10)};
  }
  return corrupt("it has no end record: it is not a zip archive, or cut off");
}

// Replaces values that did not fit into 32 bits by those in the zip64 extra field.
bool take_zip64(std::string_view extra, std::uint64_t& size, std::uint64_t& stored,
                std::uint64_t& header_at) {
  if (size != kZipMax32 && stored != kZipMax32 && header_at != kZipMax32) return true;
  while (extra.size() >= 4) {
    const Fields head(extra);
    const std::size_t bytes = head.u16(2);
    if (bytes > extra.size() - 4) return false;
    if (head.u16(0) == kZip64Extra) {
      std::size_t at = 4;
      for (std::uint64_t* value : {&size, &stored, &header_at}) {
        if (*value != kZipMax32) continue;
        if (at + 8 > 4 + bytes) return false;
        *value = head.u64(at);
        at += 8;
      }
      return true;
    }
    extra.remove_prefix(4 + bytes);
  }
  return false;
}

// Removes one entry from the front of `entries` and returns its record.
Result<ZipRecord> take_entry(std::string_view archive, std::string_view& entries,
                             const ReadPart& read) {
  if (entries.size() < kEntryBytes || !Fields(entries).is("PK\1\2"))
    return corrupt("its directory is damaged");
  const Fields entry(entries);
  const std::size_t name_bytes = entry.u16(28), extra_bytes = entry.u16(30);
  const std::size_t bytes = kEntryBytes + name_bytes + extra_bytes + entry.u16(32);
  if (bytes > entries.size()) return corrupt("its directory is damaged");
  const std::string_view name = entries.substr(kEntryBytes, name_bytes);
  if (std::ranges::any_of(name, is_control)) return corrupt("a record's name is not text");
  const auto corrupt_record = [&](const char* what) {
    return corrupt(concat("record '", name, "' ", what));
  };
  std::uint64_t stored = entry.u32(20), size = entry.u32(24), header_at = entry.u32(42);
  if (!take_zip64(entries.substr(kEntryBytes + name_bytes, extra_bytes), size, stored, header_at))
    return corrupt_record("has no zip64 sizes");
  if ((entry.u16(8) & kEncrypted) != 0)
    return unsupported(concat("record '", name, "' is encrypted"));
  if (entry.u16(10) != 0)
    return unsupported(concat("record '", name,
                              "' is compressed, as in TorchScript archives (torch.jit.save, and "
                              "torch::save of C++); torch.save stores records as they are"));
  if (stored != size) return corrupt_record("has two sizes");
  if (!part(archive, header_at, kZipLocalBytes)) return corrupt_record("is not at its position");
  const auto header =
      read(archive.substr(static_cast<std::size_t>(header_at), kZipLocalBytes + name.size()));
  if (!header) return header.error();
  const Fields local(*header);
  if (!local.is("PK\3\4")) return corrupt_record("is not at its position");
  const auto at = header_at + kZipLocalBytes + local.u16(26) + local.u16(28);
  const auto contents = part(archive, at, size);
  if (!contents) return corrupt_record("reaches beyond the end of the file");
  if (local.u16(26) != name.size() || header->substr(kZipLocalBytes) != name)
    return corrupt_record("has another name at its position");
  ZipRecord result{
      .name = name, .bytes = *contents, .crc = static_cast<std::uint32_t>(entry.u32(16))};
  entries.remove_prefix(bytes);
  return result;
}

}  // namespace

Result<std::string_view> part_in_memory(std::string_view part) { return part; }

Result<std::vector<ZipRecord>> read_zip(std::string_view archive, const ReadPart& read) {
  const Result<Directory> directory = find_directory(archive, read);
  if (!directory) return directory.error();
  const auto all = part(archive, directory->at, directory->bytes);
  if (!all) return corrupt("its directory reaches beyond the end of the file");
  const auto entries = read(*all);
  if (!entries) return entries.error();
  std::vector<ZipRecord> records;
  const auto most = static_cast<std::size_t>(
      std::min<std::uint64_t>(directory->entries, entries->size() / kEntryBytes));
  records.reserve(most);
  for (std::string_view left = *entries; !left.empty();) {
    Result<ZipRecord> record = take_entry(archive, left, read);
    if (!record) return record.error();
    records.push_back(*std::move(record));
  }
  if (records.size() != directory->entries) return corrupt("its directory lacks entries");
  std::vector<std::string_view> places;
  places.reserve(records.size());
  RecordIndex names(records.size());
  for (const ZipRecord& record : records) {
    if (!names.add(record)) return corrupt(concat("it has two records '", record.name, "'"));
    if (!record.bytes.empty()) places.push_back(record.bytes);
  }
  const auto begin_of = [](std::string_view place) { return place.data(); };
  if (!std::ranges::is_sorted(places, {}, begin_of)) std::ranges::sort(places, {}, begin_of);
  for (std::size_t i = 1; i < places.size(); ++i)
    if (places[i - 1].data() + places[i - 1].size() > places[i].data())
      return corrupt("two of its records overlap");
  return records;
}

RecordIndex::RecordIndex(std::size_t most) : places_(std::bit_ceil(2 * most + 1)) {}

const RecordIndex::Place* RecordIndex::place_of(std::string_view name, std::size_t hash) const {
  for (std::size_t i = 0; i < kMostSteps; ++i) {
    const Place& place = places_[(hash + i) & (places_.size() - 1)];
    if (!place.record || (place.hash == hash && place.record->name == name)) return &place;
  }
  return nullptr;
}

bool RecordIndex::add(const ZipRecord& record) {
  const std::size_t hash = std::hash<std::string_view>()(record.name);
  const Place* const place = place_of(record.name, hash);
  if (!place) return far_.emplace(record.name, &record).second;
  if (place->record) return false;
  places_[static_cast<std::size_t>(place - places_.data())] = {&record, hash};
  return true;
}

const ZipRecord* RecordIndex::find(std::string_view name) const {
  if (const Place* const place = place_of(name, std::hash<std::string_view>()(name)))
    return place->record;
  const auto found = far_.find(name);
  return found == far_.end() ? nullptr : found->second;
}

bool has_right_crc(const ZipRecord& record) { return crc32(record.bytes) == record.crc; }

}  // namespace ddprun
