#include "worker_lib/checkpoint/core/reading_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ReadingOrder, AFileIsReadByOneRankFromItsBeginning) {
  const std::vector<std::uint64_t> bytes{10};
  EXPECT_THAT(reading_order(bytes, 3),
              ElementsAre(ElementsAre(FileRange{0, 0, 10}), IsEmpty(), IsEmpty()));
}

TEST(ReadingOrder, FilesGoToTheRankWithTheFewestBytesAndAreReadInOrder) {
  const std::vector<std::uint64_t> bytes{4, 10, 5, 3};
  EXPECT_THAT(reading_order(bytes, 2),
              ElementsAre(ElementsAre(FileRange{1, 0, 10}),
                          ElementsAre(FileRange{0, 0, 4}, FileRange{2, 0, 5}, FileRange{3, 0, 3})));
}

TEST(ReadingOrder, PiecesFollowEachOtherAndAnEmptyFileIsOnePiece) {
  EXPECT_THAT(in_pieces({{0, 0, 10}, {1, 0, 0}, {2, 4, 8}}, 4),
              ElementsAre(FileRange{0, 0, 4}, FileRange{0, 4, 8}, FileRange{0, 8, 10},
                          FileRange{1, 0, 0}, FileRange{2, 4, 8}));
}

}  // namespace
}  // namespace ddprun
