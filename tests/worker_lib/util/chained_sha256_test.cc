#include "worker_lib/util/chained_sha256.h"

#include <gtest/gtest.h>

#include "worker_lib/util/sha256.h"

namespace ddprun {
namespace {

TEST(ChainedSha256, IsTheSameDigest) {
  for (const std::size_t size : {0, 3, 64, 65, 1000}) {
    const std::string text(size, 'x');
    ChainedSha256 digest;
    digest.add(text.data(), text.size());
    EXPECT_EQ(digest.hex(), sha256_hex(text)) << size;
  }
}

TEST(ChainedSha256, GoesOnFromAState) {
  std::string text(1000, 'x');
  text[700] = 'y';
  ChainedSha256 first;
  first.add(text.data(), 640);
  ChainedSha256 second(first.state(), 640);
  second.add(text.data() + 640, text.size() - 640);
  EXPECT_EQ(second.hex(), sha256_hex(text));
}

// The length is a part of the digest, also beyond 2^32 bits.
TEST(ChainedSha256, CountsBytesBeyondThirtyTwoBits) {
  const std::string state = ChainedSha256().state();
  ChainedSha256 a(state, std::uint64_t{1} << 33), b(state, std::uint64_t{1} << 34);
  EXPECT_NE(a.hex(), b.hex());
}

TEST(ChainedSha256, KnowsWhatCannotBeAState) {
  EXPECT_TRUE(ChainedSha256::is_state(ChainedSha256().state()));
  EXPECT_FALSE(ChainedSha256::is_state(""));
  EXPECT_FALSE(ChainedSha256::is_state(std::string(64, 'g')));
  EXPECT_FALSE(ChainedSha256::is_state(std::string(63, '0')));
}

}  // namespace
}  // namespace ddprun
