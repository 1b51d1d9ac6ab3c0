// Divides the bytes of a checkpoint's files among the ranks that read them: each byte is read by
// one rank. All ranks compute the same order, so that each knows what the others have read.
//
// The files with a chain (WrittenFile::chain) form a row, which is divided into one share for each
// rank. Shares end at states of a chain, so that each part can be verified by itself. Another file
// is read by one rank from its beginning to its end.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "worker_lib/serialization/core/written_file.h"

namespace ddprun {

// The bytes from `begin` to before `end` of a file.
struct FileRange {
  std::size_t file = 0;  // index into the manifest's files
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return end - begin; }
  bool operator==(const FileRange&) const = default;
};

// Returns the ranges of each rank, in the order in which it reads them. Ranks may have none.
std::vector<std::vector<FileRange>> reading_order(std::span<const WrittenFile> files, int ranks);

// Returns the ranges in pieces of at most `most` bytes, which is more than 0. An empty range is one
// empty piece, so that its file is looked at, too.
std::vector<FileRange> in_pieces(const std::vector<FileRange>& ranges, std::uint64_t most);

}  // namespace ddprun
