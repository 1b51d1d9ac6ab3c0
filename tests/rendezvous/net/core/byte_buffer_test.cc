#include "rendezvous/net/core/byte_buffer.h"

#include <gtest/gtest.h>

#include <string>

#include "base/rng.h"

namespace ddprun {
namespace {

TEST(ByteBuffer, GivesBackWhatWentIn) {
  Rng rng(1);
  ByteBuffer buffer;
  std::string model;
  for (int step = 0; step < 20'000; ++step) {
    const std::string more(rng.below(3000), static_cast<char>('a' + step % 26));
    buffer.append(more);
    model += more;
    const std::size_t used = rng.below(model.size() + 1);
    buffer.consume(used);
    model.erase(0, used);
    ASSERT_EQ(buffer.bytes(), model) << step;
  }
}

// If each small operation moved all bytes, this test would take minutes.
TEST(ByteBuffer, HoldsLittleMoreThanItsBytesAndMovesThemSeldom) {
  ByteBuffer buffer;
  buffer.append(std::string(16 << 20, 'x'));
  const std::string some(100, 'x');
  for (int i = 0; i < 300'000; ++i) {
    buffer.append(some);
    buffer.consume(some.size());
    ASSERT_LE(buffer.capacity(), 4 * buffer.size());
  }
}

TEST(ByteBuffer, KeepsASmallStoreAndGivesBackALargeOne) {
  ByteBuffer buffer;
  buffer.append("small");
  buffer.consume(5);
  EXPECT_GT(buffer.capacity(), 0u);
  buffer.append(std::string(1 << 20, 'x'));
  buffer.consume(1 << 20);
  EXPECT_EQ(buffer.capacity(), 0u);
}

}  // namespace
}  // namespace ddprun
