// PieceLayout: where the bytes of a piece of a file lie in memory. Those of a large tensor lie in
// its own memory, so that they are read and received there. All others lie in a buffer, at their
// place within the piece.
//
// Pieces that ranks exchange are cut at the same offsets, at the bounds of the large tensors of
// all of them. So a part lies in one place on each rank. Immutable; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "worker_lib/checkpoint/core/reading_order.h"

namespace ddprun {

// LargeTensor: the bytes of a large tensor in a file.
struct LargeTensor {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  char* memory = nullptr;  // null: this rank does not read it
};

using LargeTensors = std::vector<std::vector<LargeTensor>>;  // by file

// PiecePart: contiguous bytes of a piece.
struct PiecePart {
  FileRange range;  // its place in the file
  char* memory = nullptr;
  std::size_t bytes = 0;  // more than the range has, beyond the end of the piece
  bool is_in_buffer = true;
};

class PieceLayout {
 public:
  PieceLayout() = default;  // of files without large tensors
  // tensors: of each file sorted, and not overlapping.
  explicit PieceLayout(LargeTensors tensors) : tensors_(std::move(tensors)) {}

  // Returns the ends of the parts of pieces that are exchanged, as offsets from their begins. The
  // last one is `bytes`, which no piece exceeds.
  std::vector<std::uint64_t> cuts(std::span<const FileRange> pieces, std::uint64_t bytes) const;
  // Returns the parts of a piece. cuts: of pieces that this one is among. buffer: for as many bytes
  // as the last cut.
  std::vector<PiecePart> parts(const FileRange& piece, std::span<const std::uint64_t> cuts,
                               char* buffer) const;

 private:
  std::span<const LargeTensor> tensors_in(const FileRange& piece) const;

  LargeTensors tensors_;
};

inline const PieceLayout kAllInBuffer;

}  // namespace ddprun
