// PieceReader: reads ranges of a checkpoint's files piece by piece, and compares each file with
// its digest. While the caller uses a piece, one thread digests it and another one reads the next
// piece. So the memory is two pieces, whatever the size of the files. Bytes of large tensors are
// read into the memory that the layout has for them.
//
//   PieceReader reader(directory, manifest, in_pieces(ranges, kPieceBytes));
//   while (const auto piece = reader.next()) use(piece->range, piece->data);
//   if (const auto failure = reader.failure()) ...
//
// One owner thread.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/task_queue.h"
#include "base/unique_fd.h"
#include "worker_lib/checkpoint/core/piece_layout.h"
#include "worker_lib/checkpoint/io.h"
#include "worker_lib/util/chained_sha256.h"

namespace ddprun {

inline constexpr std::uint64_t kPieceBytes = 4 << 20;  // enough for the disk's full speed

class PieceReader {
 public:
  // Pieces of reading_order(). `directory`, `manifest` and `layout` must outlive this. room: the
  // bytes of the buffer that a piece begins, at least its size. The caller may write after the
  // piece.
  PieceReader(const CheckpointDirectory& directory, const CheckpointManifest& manifest,
              std::vector<FileRange> pieces, const PieceLayout& layout = kAllInBuffer,
              std::uint64_t room = 0);

  struct Piece {
    FileRange range;
    char* data = nullptr;  // the buffer, of range.bytes(), valid until the next call
  };
  // Returns the next piece, whose bytes may still turn out to be damaged. nullopt: there is no
  // more, or a failure.
  std::optional<Piece> next();

  // Returns the first failure that is known. After next() has returned nullopt, this is final.
  // kCorrupt: a file is damaged or cut off. Other kinds: as open_regular_file(), or the disk's
  // error.
  const std::optional<Error>& failure() const { return failure_; }

 private:
  // Each belongs to the reading thread, then to the caller and the digesting thread, which reads
  // it; the caller may write after the piece.
  struct Slot {
    std::unique_ptr<char[]> bytes;
    std::optional<Error> failure;
  };

  void begin_read();
  std::vector<PiecePart> parts_of(const FileRange& piece, char* buffer) const;
  std::optional<Error> read(const FileRange& range, char* buffer);
  std::optional<Error> digest(const FileRange& range, char* buffer);

  const CheckpointDirectory& directory_;
  const CheckpointManifest& manifest_;
  const std::vector<FileRange> pieces_;
  const PieceLayout& layout_;
  std::vector<std::string> paths_;  // of the manifest's files
  std::size_t next_ = 0;
  std::array<Slot, 2> slots_;
  std::optional<std::size_t> open_file_;   // of the reading thread
  UniqueFd fd_;                            // of the reading thread
  std::unique_ptr<ChainedSha256> digest_;  // of the digesting thread
  std::optional<Error> digest_failure_;    // of the digesting thread
  std::optional<Error> failure_;
  BackgroundTask digesting_{"ddprun-digest"};
  BackgroundTask reading_{"ddprun-read"};
};

}  // namespace ddprun
