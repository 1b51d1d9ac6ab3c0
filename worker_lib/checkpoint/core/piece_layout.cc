#include "worker_lib/checkpoint/core/piece_layout.h"

#include <algorithm>

namespace ddprun {

// Returns the tensors that have bytes in the piece.
std::span<const LargeTensor> PieceLayout::tensors_in(const FileRange& piece) const {
  if (piece.file >= tensors_.size()) return {};
  const std::vector<LargeTensor>& all = tensors_[piece.file];
  const auto first = std::ranges::upper_bound(all, piece.begin, {}, &LargeTensor::end);
  const auto last = std::ranges::lower_bound(first, all.end(), piece.end, {}, &LargeTensor::begin);
  return {first, last};
}

std::vector<std::uint64_t> PieceLayout::cuts(std::span<const FileRange> pieces,
                                             std::uint64_t bytes) const {
  std::vector<std::uint64_t> result{bytes};
  for (const FileRange& piece : pieces)
    for (const LargeTensor& tensor : tensors_in(piece)) {
      if (tensor.begin > piece.begin) result.push_back(tensor.begin - piece.begin);
      result.push_back(std::min(tensor.end, piece.end) - piece.begin);
    }
  std::ranges::sort(result);
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

std::vector<PiecePart> PieceLayout::parts(const FileRange& piece,
                                          std::span<const std::uint64_t> cuts, char* buffer) const {
  const std::span<const LargeTensor> tensors = tensors_in(piece);
  auto tensor = tensors.begin();
  std::vector<PiecePart> result;
  std::uint64_t from = 0;
  for (const std::uint64_t to : cuts) {
    const auto at = [&](std::uint64_t offset) {
      return piece.begin + std::min(offset, piece.bytes());
    };
    PiecePart part{.range = {piece.file, at(from), at(to)},
                   .memory = buffer + from,
                   .bytes = static_cast<std::size_t>(to - from)};
    while (tensor != tensors.end() && tensor->end <= part.range.begin) ++tensor;
    if (tensor != tensors.end() && tensor->begin <= part.range.begin && tensor->memory &&
        part.range.bytes() > 0) {
      part.memory = tensor->memory + (part.range.begin - tensor->begin);
      part.is_in_buffer = false;
    }
    result.push_back(part);
    from = to;
  }
  return result;
}

}  // namespace ddprun
