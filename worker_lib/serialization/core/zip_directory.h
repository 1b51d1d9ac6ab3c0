// The records of a zip archive as torch.save and LibTorch write it: stored, never compressed.
//
// Why not LibTorch's own reader: it neither checks a record's CRC nor tells it, takes memory on a hostile
// directory's word, and a tool for people would start LibTorch to list names. What torch.save writes
// of the format (zip64 included) is one page: PKWARE's APPNOTE.TXT, 4.3.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun {

struct ZipRecord {
  std::string name;
  std::string_view bytes;  // in the archive
  std::uint32_t crc = 0;   // that the directory says
};

// The records in the directory's order; they refer into `archive`. No two overlap, none reaches
// beyond the archive, none has another's name.
// kCorrupt: the archive is damaged or cut off; kUnsupported: it is whole, but compressed, encrypted
// or in several files.
Result<std::vector<ZipRecord>> read_zip(std::string_view archive);

// Whether the record's bytes are those that its CRC-32 was made of.
bool has_right_crc(const ZipRecord& record);

}  // namespace ddprun
