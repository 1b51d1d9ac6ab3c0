#include "launcher/options/core/bytes_text.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(BytesText, CountsInPowersOf1024) {
  constexpr std::uint64_t kMiB = 1 << 20;
  EXPECT_EQ(bytes_text(0), "0 bytes");
  EXPECT_EQ(bytes_text(1023), "1023 bytes");
  EXPECT_EQ(bytes_text(1023, "B"), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.0 KiB");
  EXPECT_EQ(bytes_text(64 * kMiB), "64.0 MiB");
  EXPECT_EQ(bytes_text(1536 * kMiB), "1.5 GiB");
}

}  // namespace
}  // namespace ddprun
