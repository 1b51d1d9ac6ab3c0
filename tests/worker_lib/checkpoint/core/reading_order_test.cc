#include "worker_lib/checkpoint/core/reading_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

WrittenFile file_of(std::uint64_t bytes, std::uint64_t chain_bytes = 0) {
  WrittenFile file{.bytes = bytes, .chain_bytes = chain_bytes};
  file.chain.resize(chain_states(bytes, chain_bytes) * kChainDigits);
  return file;
}

TEST(ReadingOrder, AFileWithoutAChainIsReadByOneRankFromItsBeginning) {
  EXPECT_THAT(reading_order(std::vector{file_of(10)}, 3),
              ElementsAre(ElementsAre(FileRange{0, 0, 10}), IsEmpty(), IsEmpty()));
}

TEST(ReadingOrder, FilesGoToTheRankWithTheFewestBytesAndAreReadInOrder) {
  EXPECT_THAT(reading_order(std::vector{file_of(4), file_of(10), file_of(5), file_of(3)}, 2),
              ElementsAre(ElementsAre(FileRange{1, 0, 10}),
                          ElementsAre(FileRange{0, 0, 4}, FileRange{2, 0, 5}, FileRange{3, 0, 3})));
}

TEST(ReadingOrder, AFileWithAChainIsDividedBetweenItsStates) {
  EXPECT_THAT(
      reading_order(std::vector{file_of(650, 128)}, 4),
      ElementsAre(ElementsAre(FileRange{0, 0, 256}), ElementsAre(FileRange{0, 256, 512}),
                  ElementsAre(FileRange{0, 512, 640}), ElementsAre(FileRange{0, 640, 650})));
  EXPECT_THAT(reading_order(std::vector{file_of(256, 128)}, 3),
              ElementsAre(ElementsAre(FileRange{0, 0, 128}), ElementsAre(FileRange{0, 128, 256}),
                          IsEmpty()));
}

TEST(ReadingOrder, PiecesFollowEachOtherAndAnEmptyFileIsOnePiece) {
  EXPECT_THAT(in_pieces({{0, 0, 10}, {1, 0, 0}, {2, 4, 8}}, 4),
              ElementsAre(FileRange{0, 0, 4}, FileRange{0, 4, 8}, FileRange{0, 8, 10},
                          FileRange{1, 0, 0}, FileRange{2, 4, 8}));
}

}  // namespace
}  // namespace ddprun
