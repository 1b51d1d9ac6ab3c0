#include "worker_lib/serialization/core/zip_writer.h"

#include <algorithm>

#include "base/assert.h"
#include "worker_lib/serialization/core/crc32.h"
#include "worker_lib/serialization/core/little_endian.h"
#include "worker_lib/serialization/core/zip_format.h"

namespace ddprun {
namespace {

constexpr std::size_t kPieceBytes = 256 << 10;  // stays in a core's cache between CRC and copy
constexpr std::size_t kExtraHeadBytes = 4, kZip64HeadBytes = 4;
constexpr std::uint64_t kMax16 = 0xffff;
constexpr std::uint16_t kPlainVersion = 20, kZip64Version = 45;
// Sizes and CRC follow the record; names are UTF-8.
constexpr std::uint16_t kFlags = 0x0808;
constexpr std::uint16_t kStored = 0;

void add16(std::string& text, std::uint64_t value) { add_little_endian(text, value, 2); }
void add32(std::string& text, std::uint64_t value) { add_little_endian(text, value, 4); }
void add64(std::string& text, std::uint64_t value) { add_little_endian(text, value, 8); }

bool is_large(std::uint64_t bytes) { return bytes >= kZipMax32; }

// Adds the common start of both headers.
void add_facts(std::string& text, bool needs_zip64) {
  add16(text, needs_zip64 ? kZip64Version : kPlainVersion);
  add16(text, kFlags);
  add16(text, kStored);
  add32(text, 0);  // no time, so that the same state gives the same bytes
}

// Makes what follows a record's bytes.
void make_trailer(std::string& trailer, std::uint64_t bytes, std::uint32_t crc) {
  trailer = "PK\7\10";
  add32(trailer, crc);
  for (int i = 0; i < 2; ++i) add_little_endian(trailer, bytes, is_large(bytes) ? 8 : 4);
}

}  // namespace

void ZipWriter::put(std::string_view bytes) {
  write_(bytes.data(), bytes.size());
  at_ += bytes.size();
}

void ZipWriter::add_header(std::string name, std::uint64_t bytes, std::size_t alignment) {
  DDPRUN_ASSERT(name.size() <= kMax16, "a record's name is short");
  DDPRUN_ASSERT(alignment <= kMax16 / 2, "the padding fits into the header");
  const bool large = is_large(bytes);
  const std::size_t zip64_bytes = large ? kZip64HeadBytes + 16 : 0;
  const std::uint64_t unpadded = at_ + kZipLocalBytes + name.size() + zip64_bytes + kExtraHeadBytes;
  const std::size_t padding = (alignment - unpadded % alignment) % alignment;

  text_ = "PK\3\4";
  add_facts(text_, large);
  add32(text_, 0);  // the CRC follows the record, and so do
  add32(text_, 0);  // the sizes
  add32(text_, 0);
  add16(text_, name.size());
  add16(text_, zip64_bytes + kExtraHeadBytes + padding);
  text_ += name;
  if (large) {
    add16(text_, kZip64Extra);
    add16(text_, 16);
    add64(text_, bytes);
    add64(text_, bytes);
  }
  text_ += "FB";  // LibTorch's mark for padding
  add16(text_, padding);
  text_.append(padding, 'Z');
  records_.push_back({.name = std::move(name), .at = at_, .bytes = bytes});
  put(text_);
}

void ZipWriter::add_bytes(std::string_view bytes, std::optional<std::uint32_t> crc) {
  Record& record = records_.back();
  DDPRUN_ASSERT(bytes.size() == record.bytes, "a record has the size of its header");
  if (crc) {
    record.crc = *crc;
    put(bytes);
  } else {
    for (; !bytes.empty(); bytes.remove_prefix(std::min(bytes.size(), kPieceBytes))) {
      const std::string_view piece = bytes.substr(0, kPieceBytes);
      record.crc = crc32(piece, record.crc);  // brings it into the cache
      put(piece);
    }
  }
  make_trailer(text_, record.bytes, record.crc);
  put(text_);
}

void ZipWriter::leave_out() {
  const Record& record = records_.back();
  make_trailer(text_, record.bytes, 0);
  at_ += record.bytes + text_.size();
}

std::vector<std::uint32_t> ZipWriter::crcs() const {
  std::vector<std::uint32_t> result;
  result.reserve(records_.size());
  for (const Record& record : records_) result.push_back(record.crc);
  return result;
}

void ZipWriter::finish() {
  std::string text, extra;
  for (const Record& record : records_) {
    const bool large = is_large(record.bytes), far = is_large(record.at);
    extra.clear();
    if (large || far) {
      add16(extra, kZip64Extra);
      add16(extra, (large ? 16 : 0) + (far ? 8 : 0));
      if (large) add64(extra, record.bytes);
      if (large) add64(extra, record.bytes);
      if (far) add64(extra, record.at);
    }
    text += "PK\1\2";
    // The version that made it, then the version needed to read it.
    add16(text, large || far ? kZip64Version : kPlainVersion);
    add_facts(text, large || far);
    add32(text, record.crc);
    for (int i = 0; i < 2; ++i) add32(text, std::min(record.bytes, kZipMax32));
    add16(text, record.name.size());
    add16(text, extra.size());
    add16(text, 0);  // no comment
    add16(text, 0);  // the first and only disk
    add16(text, 0);  // no attributes
    add32(text, 0);
    add32(text, std::min(record.at, kZipMax32));
    text += record.name;
    text += extra;
  }
  // The 64-bit end record is always written, as LibTorch does. So there is one form, which every
  // test reads.
  const std::uint64_t directory_bytes = text.size();
  text += "PK\6\6";
  add64(text, 44);  // bytes that follow
  add16(text, kZip64Version);
  add16(text, kZip64Version);
  add64(text, 0);  // the first and only disk, twice
  for (int i = 0; i < 2; ++i) add64(text, records_.size());
  add64(text, directory_bytes);
  add64(text, at_);
  text += "PK\6\7";
  add32(text, 0);
  add64(text, at_ + directory_bytes);
  add32(text, 1);
  text += "PK\5\6";
  add32(text, 0);
  for (int i = 0; i < 2; ++i) add16(text, std::min<std::uint64_t>(records_.size(), kMax16));
  add32(text, std::min(directory_bytes, kZipMax32));
  add32(text, std::min(at_, kZipMax32));
  add16(text, 0);  // no comment
  put(text);
}

}  // namespace ddprun
