#include "worker_lib/checkpoint/core/piece_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

namespace ddprun {
namespace {

using testing::ElementsAre;

// Two files: tensors at 10-20 and 24-40 of the first, and at 0-100 of the second.
class PieceLayoutTest : public testing::Test {
 protected:
  std::array<char, 10> a_{};
  std::array<char, 100> c_{};
  std::array<char, 64> buffer_{};
  const PieceLayout layout_{{{{10, 20, a_.data()}, {24, 40, nullptr}}, {{0, 100, c_.data()}}}};

  // Returns "10-20 direct" for each part.
  std::vector<std::string> parts(const FileRange& piece, std::vector<std::uint64_t> cuts) {
    std::vector<std::string> result;
    std::uint64_t from = 0;
    for (const PiecePart& part : layout_.parts(piece, cuts, buffer_.data())) {
      const FileRange& range = part.range;
      EXPECT_EQ(range.file, piece.file);
      EXPECT_EQ(part.bytes, cuts[result.size()] - from);
      if (part.is_in_buffer) {
        EXPECT_EQ(part.memory, buffer_.data() + from);
      } else if (range.file == 0) {
        EXPECT_EQ(part.memory, a_.data() + (range.begin - 10));
      } else {
        EXPECT_EQ(part.memory, c_.data() + range.begin);
      }
      from = cuts[result.size()];
      result.push_back(std::to_string(range.begin) + "-" + std::to_string(range.end) +
                       (part.is_in_buffer ? "" : " direct"));
    }
    return result;
  }
};

TEST_F(PieceLayoutTest, PiecesAreCutAtTheBoundsOfTheLargeTensors) {
  const auto cuts = [&](std::vector<FileRange> pieces, std::uint64_t bytes) {
    return layout_.cuts(pieces, bytes);
  };
  EXPECT_THAT(cuts({{0, 0, 32}}, 32), ElementsAre(10, 20, 24, 32));
  EXPECT_THAT(cuts({{0, 0, 32}}, 40), ElementsAre(10, 20, 24, 32, 40)) << "ends in a tensor";
  EXPECT_THAT(cuts({{0, 0, 10}}, 16), ElementsAre(16));
  EXPECT_THAT(cuts({{0, 20, 24}}, 4), ElementsAre(4));
  EXPECT_THAT(cuts({{0, 12, 18}}, 6), ElementsAre(6));
  EXPECT_THAT(cuts({{0, 0, 32}, {0, 32, 64}, {1, 64, 72}}, 40), ElementsAre(8, 10, 20, 24, 32, 40));
  EXPECT_THAT(cuts({{0, 0, 0}, {7, 0, 10}}, 10), ElementsAre(10));
  EXPECT_THAT(cuts({{0, 0, 0}}, 0), ElementsAre(0));
}

TEST_F(PieceLayoutTest, PartsOfATensorThatIsReadLieInItsMemory) {
  EXPECT_THAT(parts({0, 0, 32}, {10, 20, 24, 32}),
              ElementsAre("0-10", "10-20 direct", "20-24", "24-32"));
  EXPECT_THAT(parts({0, 8, 16}, {2, 8, 12}), ElementsAre("8-10", "10-16 direct", "16-16"));
  EXPECT_THAT(parts({1, 64, 80}, {8, 10, 16, 20}),
              ElementsAre("64-72 direct", "72-74 direct", "74-80 direct", "80-80"));
  EXPECT_THAT(parts({1, 0, 0}, {8}), ElementsAre("0-0"));
  EXPECT_THAT(parts({7, 5, 9}, {4}), ElementsAre("5-9"));
}

}  // namespace
}  // namespace ddprun
