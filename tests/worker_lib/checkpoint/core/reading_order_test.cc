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
      ElementsAre(ElementsAre(FileRange{0, 0, 256}), ElementsAre(FileRange{0, 256, 384}),
                  ElementsAre(FileRange{0, 384, 512}), ElementsAre(FileRange{0, 512, 650})));
  EXPECT_THAT(reading_order(std::vector{file_of(256, 128)}, 3),
              ElementsAre(ElementsAre(FileRange{0, 0, 128}), ElementsAre(FileRange{0, 128, 256}),
                          IsEmpty()));
}

TEST(ReadingOrder, SmallFilesWithAChainAreSharedByAllRanks) {
  for (const std::uint64_t bytes : {6, 100}) {
    const std::vector<WrittenFile> shards(64, file_of(bytes, 4));
    for (const auto& ranges : reading_order(shards, 64)) {
      std::uint64_t sum = 0;
      for (const FileRange& range : ranges) sum += range.bytes();
      EXPECT_EQ(sum, bytes);
    }
  }
}

TEST(ReadingOrder, EveryByteIsReadOnceWhateverTheSizes) {
  const std::uint64_t huge = std::uint64_t{1} << 63;
  const std::vector files{file_of(7, 2), file_of(huge, huge / 4 + 1), file_of(huge, huge / 2),
                          file_of(0), file_of(huge - 1, huge / 8)};
  for (const int ranks : {1, 2, 3, 8, 100}) {
    std::vector<std::uint64_t> read(files.size());
    for (const auto& ranges : reading_order(files, ranks))
      for (const FileRange& range : ranges) {
        EXPECT_EQ(range.begin, read[range.file]);
        read[range.file] = range.end;
      }
    for (std::size_t i = 0; i < files.size(); ++i) EXPECT_EQ(read[i], files[i].bytes);
  }
}

TEST(ReadingOrder, AFileWithoutAChainGoesToTheRankWithTheFewestBytes) {
  EXPECT_THAT(reading_order(std::vector{file_of(4, 2), file_of(1)}, 3),
              ElementsAre(ElementsAre(FileRange{0, 0, 2}), ElementsAre(FileRange{1, 0, 1}),
                          ElementsAre(FileRange{0, 2, 4})));
}

TEST(ReadingOrder, PiecesFollowEachOtherAndAnEmptyFileIsOnePiece) {
  EXPECT_THAT(in_pieces({{0, 0, 10}, {1, 0, 0}, {2, 4, 8}}, 4),
              ElementsAre(FileRange{0, 0, 4}, FileRange{0, 4, 8}, FileRange{0, 8, 10},
                          FileRange{1, 0, 0}, FileRange{2, 4, 8}));
}

}  // namespace
}  // namespace ddprun
