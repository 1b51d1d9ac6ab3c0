#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace ddprun {
namespace {

// The check value of the catalogues of CRCs, and two of the test vectors of RFC 3720.
TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(crc32c({"123456789"}), 0xe3069283);
  EXPECT_EQ(crc32c({std::string(32, '\0')}), 0x8a9136aa);
  EXPECT_EQ(crc32c({std::string(32, '\xff')}), 0x62a8ab43);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32c, OfPartsIsThatOfTheWhole) {
  EXPECT_EQ(crc32c({"1234", "", "56789"}), crc32c({"123456789"}));
}

}  // namespace
}  // namespace ddprun
