#include "worker_lib/collective/core/scattered.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "base/rng.h"

namespace ddprun {
namespace {

std::string text_of(const Scattered<const char>& bytes, Range range) {
  std::string text(range.size(), '?');
  bytes.copy_to(text.data(), range);
  return text;
}

TEST(Scattered, OnePieceIsReadAndWrittenWhereItLies) {
  std::string memory = "abcdef";
  const Scattered<char> bytes(WritableBytes(memory.data(), memory.size()));
  EXPECT_EQ(bytes.bytes(), 6u);
  bytes.copy_from("XY", {2, 4});
  EXPECT_EQ(memory, "abXYef");
  bytes.for_each({3, 6}, [&](char* piece, std::size_t offset, std::size_t length) {
    EXPECT_EQ(piece, memory.data() + 3);
    EXPECT_EQ(offset, 0u);
    EXPECT_EQ(length, 3u);
  });
}

TEST(Scattered, NothingHasNoBytes) {
  EXPECT_EQ(Scattered<char>().bytes(), 0u);
  EXPECT_EQ(Scattered<char>(std::span<const WritableBytes>()).bytes(), 0u);
  Scattered<char>().copy_from(nullptr, {0, 0});
  const std::vector<WritableBytes> empty_ones(3);
  Scattered<char>(empty_ones).copy_from(nullptr, {0, 0});
}

TEST(Scattered, EveryRangeOfRandomPiecesIsTheSameAsOfTheWhole) {
  Rng rng(11);
  for (int trial = 0; trial < 200; ++trial) {
    std::string whole;
    std::vector<std::string> texts(1 + rng.below(6));
    for (std::string& text : texts) {
      for (std::uint64_t left = rng.below(5); left > 0; --left) {
        text += static_cast<char>('a' + rng.below(26));
      }
      whole += text;
    }
    std::vector<ReadableBytes> pieces(texts.begin(), texts.end());
    const Scattered<const char> bytes(pieces);
    ASSERT_EQ(bytes.bytes(), whole.size());
    for (std::size_t begin = 0; begin <= whole.size(); ++begin) {
      for (std::size_t end = begin; end <= whole.size(); ++end) {
        ASSERT_EQ(text_of(bytes, {begin, end}), whole.substr(begin, end - begin));
      }
    }
    std::vector<WritableBytes> rooms;
    std::vector<std::string> copies = texts;
    for (std::string& copy : copies) {
      std::ranges::fill(copy, '.');
      rooms.emplace_back(copy);
    }
    Scattered<char>(rooms).copy_from(whole.data(), {0, whole.size()});
    EXPECT_EQ(copies, texts);
  }
}

}  // namespace
}  // namespace ddprun
