#include "worker_lib/tensorboard/core/tf_record.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace ddprun {
namespace {

// Undoes the mask, as readers do.
std::uint32_t crc32c(std::string_view bytes) {
  const std::uint32_t rotated = masked_crc32c(bytes) - 0xa282ead8;
  return rotated >> 17 | rotated << 15;
}

TEST(TfRecord, ChecksumsAreThePublishedOnes) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  // RFC 3720, B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(masked_crc32c(""), 0xa282ead8U);
}

TEST(TfRecord, ARecordHasItsLengthAndTwoChecksums) {
  std::string file = "before";
  add_tf_record(file, "abc");
  const auto number = [&](std::size_t begin) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i)
      value |= std::uint32_t{static_cast<unsigned char>(file[begin + i])} << (8 * i);
    return value;
  };
  ASSERT_EQ(file.size(), 6U + 8 + 4 + 3 + 4);
  const std::string length("\x03\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(file.substr(6, 8), length);
  EXPECT_EQ(number(14), masked_crc32c(length));
  EXPECT_EQ(file.substr(18, 3), "abc");
  EXPECT_EQ(number(21), masked_crc32c("abc"));
}

}  // namespace
}  // namespace ddprun
