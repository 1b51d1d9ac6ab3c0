// plan_pieces(): splits a list of tensors into pieces that are sent one after the other. Pure;
// any thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "worker_lib/collective/core/range.h"

namespace ddprun {

// A part of one tensor of the list.
struct TensorPart {
  std::size_t tensor = 0;
  Range elements;

  friend bool operator==(const TensorPart&, const TensorPart&) = default;
};
using Piece = std::vector<TensorPart>;

// Splits the list. sizes: elements of each tensor. Every piece except the last holds max_piece
// elements, in the order of the list. An empty tensor is in the piece of its neighbour. Returns
// at least one piece.
std::vector<Piece> plan_pieces(std::span<const std::size_t> sizes, std::size_t max_piece);

}  // namespace ddprun
