#include "worker_lib/cpu_backend/core/piece_plan.h"

#include <algorithm>

namespace ddprun {

std::vector<Piece> plan_pieces(std::span<const std::size_t> sizes, std::size_t max_piece) {
  std::vector<Piece> pieces(1);
  std::size_t room = max_piece;  // in the last piece
  for (std::size_t tensor = 0; tensor < sizes.size(); ++tensor) {
    std::size_t begin = 0;
    do {
      if (room == 0 && sizes[tensor] > 0) {
        pieces.emplace_back();
        room = max_piece;
      }
      const std::size_t length = std::min(room, sizes[tensor] - begin);
      pieces.back().push_back({tensor, {begin, begin + length}});
      begin += length;
      room -= length;
    } while (begin < sizes[tensor]);
  }
  return pieces;
}

}  // namespace ddprun
