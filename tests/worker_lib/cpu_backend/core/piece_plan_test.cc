#include "worker_lib/cpu_backend/core/piece_plan.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

std::vector<Piece> plan(std::vector<std::size_t> sizes, std::size_t max_piece) {
  return plan_pieces(sizes, max_piece);
}

TEST(PiecePlan, WhatFitsIsOnePiece) {
  EXPECT_EQ(plan({3, 4}, 7), (std::vector<Piece>{{{0, {0, 3}}, {1, {0, 4}}}}));
}

TEST(PiecePlan, ALongTensorIsCutAndItsRestGoesWithTheNext) {
  EXPECT_EQ(plan({5, 2}, 3),
            (std::vector<Piece>{{{0, {0, 3}}}, {{0, {3, 5}}, {1, {0, 1}}}, {{1, {1, 2}}}}));
}

TEST(PiecePlan, EmptyTensorsBeginNoPieceOfTheirOwn) {
  EXPECT_EQ(plan({3, 0, 0}, 3), (std::vector<Piece>{{{0, {0, 3}}, {1, {0, 0}}, {2, {0, 0}}}}));
  EXPECT_EQ(plan({0}, 3), (std::vector<Piece>{{{0, {0, 0}}}}));
}

TEST(PiecePlan, NothingIsOneEmptyPiece) { EXPECT_EQ(plan({}, 3), std::vector<Piece>(1)); }

TEST(PiecePlan, EveryElementIsInExactlyOnePiece) {
  for (std::size_t max_piece = 1; max_piece < 9; ++max_piece) {
    const std::vector<std::size_t> sizes{4, 0, 17, 1, 8, 0};
    std::vector<std::size_t> seen(sizes.size(), 0);
    const std::vector<Piece> pieces = plan(sizes, max_piece);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      std::size_t length = 0;
      for (const TensorPart& part : pieces[i]) {
        EXPECT_EQ(part.elements.begin, seen[part.tensor]);
        seen[part.tensor] = part.elements.end;
        length += part.elements.size();
      }
      EXPECT_LE(length, max_piece);
      EXPECT_TRUE(i + 1 == pieces.size() || length == max_piece);
    }
    EXPECT_EQ(seen, sizes);
  }
}

}  // namespace
}  // namespace ddprun
