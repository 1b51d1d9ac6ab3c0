#include "worker_lib/collective/core/tensor_hash.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <set>
#include <vector>

namespace ddprun {
namespace {

std::vector<std::byte> random_bytes(std::size_t size, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& one : bytes) one = static_cast<std::byte>(random());
  return bytes;
}

TEST(TensorHash, IsTheSameForTheSameBytesWhereverTheyLie) {
  const auto bytes = random_bytes(1000);
  for (std::size_t shift = 0; shift < 16; ++shift) {
    std::vector<std::byte> moved(shift);
    moved.insert(moved.end(), bytes.begin(), bytes.end());
    EXPECT_EQ(tensor_hash(std::span(moved).subspan(shift)), tensor_hash(bytes)) << shift;
  }
}

// The sizes have blocks of 64 bytes, words, and remaining bytes; the test flips every bit of
// them.
TEST(TensorHash, EveryBitCounts) {
  for (const std::size_t size : {1, 7, 8, 9, 63, 64, 65, 200}) {
    auto bytes = random_bytes(size);
    std::set<std::uint64_t> seen{tensor_hash(bytes)};
    for (std::size_t bit = 0; bit < size * 8; ++bit) {
      const auto flip = static_cast<std::byte>(1U << (bit % 8));
      bytes[bit / 8] ^= flip;
      EXPECT_TRUE(seen.insert(tensor_hash(bytes)).second) << size << " bytes, bit " << bit;
      bytes[bit / 8] ^= flip;
    }
  }
}

// Signs are the top bits of words. A product alone would not carry them any further.
TEST(TensorHash, TwoSignsInOneLaneDoNotCancelOut) {
  std::vector<double> numbers(64, 1.0);
  std::set<std::uint64_t> seen{tensor_hash(std::as_bytes(std::span(numbers)))};
  for (std::size_t a = 0; a < numbers.size(); ++a)
    for (std::size_t b = a + 1; b < numbers.size(); ++b) {
      auto changed = numbers;
      changed[a] = changed[b] = -1.0;
      EXPECT_TRUE(seen.insert(tensor_hash(std::as_bytes(std::span(changed)))).second)
          << a << " and " << b;
    }
}

TEST(TensorHash, NoBitUndoesOneInTheLanesNextWord) {
  std::vector<std::uint64_t> words(16, 0x0123456789abcdef);
  std::set<std::uint64_t> seen{tensor_hash(words)};
  for (int a = 0; a < 64; ++a)
    for (int b = 0; b < 64; ++b) {
      auto changed = words;
      changed[3] ^= std::uint64_t{1} << a;
      changed[11] ^= std::uint64_t{1} << b;
      EXPECT_TRUE(seen.insert(tensor_hash(changed)).second) << a << " and " << b;
    }
}

TEST(TensorHash, OrderCounts) {
  std::vector<std::uint64_t> words(256);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i;
  std::set<std::uint64_t> seen{tensor_hash(words)};
  for (std::size_t i = 0; i + 8 < words.size(); ++i)
    for (const std::size_t distance : {1, 8}) {
      auto changed = words;
      std::swap(changed[i], changed[i + distance]);
      EXPECT_TRUE(seen.insert(tensor_hash(changed)).second) << i << " by " << distance;
    }
}

TEST(TensorHash, ZerosOfDifferentLengthsDiffer) {
  std::set<std::uint64_t> seen;
  for (std::size_t size = 0; size < 300; ++size)
    EXPECT_TRUE(seen.insert(tensor_hash(std::vector<std::byte>(size))).second) << size;
}

TEST(TensorHash, AFlippedBitTurnsAboutHalfOfTheHash) {
  auto bytes = random_bytes(256);
  const std::uint64_t before = tensor_hash(bytes);
  int turned = 0;
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto flip = static_cast<std::byte>(1U << (bit % 8));
    bytes[bit / 8] ^= flip;
    const int bits = std::popcount(tensor_hash(bytes) ^ before);
    EXPECT_GE(bits, 8) << bit;
    EXPECT_LE(bits, 56) << bit;
    turned += bits;
    bytes[bit / 8] ^= flip;
  }
  EXPECT_NEAR(turned / (256.0 * 8), 32, 0.5);
}

// The ranks of one job may run different builds of ddprun only if this number never changes.
TEST(TensorHash, StaysAsItIs) {
  std::vector<std::uint64_t> words(20);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i * i;
  EXPECT_EQ(tensor_hash(words), 9609626552537573635U);
}

}  // namespace
}  // namespace ddprun
