// Reads the records of a zip archive as torch.save and LibTorch write it: stored, never
// compressed.
//
// LibTorch's own reader is not used for three reasons. It neither checks a record's CRC nor
// returns it. It allocates memory for sizes in a hostile directory. And a tool for people would
// have to start LibTorch to list names. The part of the format that torch.save writes (zip64
// included) takes one page: PKWARE's APPNOTE.TXT, 4.3.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun {

struct ZipRecord {
  std::string_view name;   // in the archive's directory
  std::string_view bytes;  // in the archive
  std::uint32_t crc = 0;   // as the directory gives it
};

// Returns the bytes of a part of an archive, for an archive whose own bytes are not in memory
// (checkpoint/file_outline.h). They are valid as long as what returned them.
using ReadPart = std::function<Result<std::string_view>(std::string_view part)>;
// Returns the part itself, for an archive in memory.
Result<std::string_view> part_in_memory(std::string_view part);

// Returns the records in the directory's order; they refer into `archive`, and their names into
// what `read` returned. No two overlap, none reaches beyond the archive, and all names differ.
// kCorrupt: the archive is damaged or cut off. kUnsupported: it is complete, but compressed,
// encrypted or in several files.
// read: gets the directory and each record's header, never the records. Its errors are returned.
Result<std::vector<ZipRecord>> read_zip(std::string_view archive,
                                        const ReadPart& read = part_in_memory);

// RecordIndex: finds records by name. It costs a fraction of a map's time. Names that were chosen
// to have one hash make it no slower than a map. The records must outlive it.
class RecordIndex {
 public:
  // most: how many records there can be.
  explicit RecordIndex(std::size_t most);
  // Adds a record. Returns false, and adds nothing, if there is one of this name.
  bool add(const ZipRecord& record);
  // Returns the record of this name, or nullptr.
  const ZipRecord* find(std::string_view name) const;

 private:
  struct Place {
    const ZipRecord* record = nullptr;
    std::size_t hash = 0;  // of the name
  };
  // Returns the place of a name's record, or an empty one for it. nullptr: all places near its hash
  // have other records.
  const Place* place_of(std::string_view name, std::size_t hash) const;

  std::vector<Place> places_;                         // a power of two, at least half of them empty
  std::map<std::string_view, const ZipRecord*> far_;  // records without a place near their hash
};

// Returns whether the record's bytes match its CRC-32.
bool has_right_crc(const ZipRecord& record);

}  // namespace ddprun
