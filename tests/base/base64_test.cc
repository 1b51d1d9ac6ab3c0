#include "base/base64.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(Base64, HasTheVectorsOfTheStandard) {
  // RFC 4648, section 10.
  const std::pair<const char*, const char*> vectors[] = {{"", ""},
                                                         {"f", "Zg=="},
                                                         {"fo", "Zm8="},
                                                         {"foo", "Zm9v"},
                                                         {"foob", "Zm9vYg=="},
                                                         {"fooba", "Zm9vYmE="},
                                                         {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : vectors) {
    EXPECT_EQ(to_base64(bytes), text);
    EXPECT_EQ(from_base64(text), bytes);
  }
}

TEST(Base64, TakesEveryByteBack) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  EXPECT_EQ(from_base64(to_base64(bytes)), bytes);
}

TEST(Base64, RefusesWhatIsNotBase64) {
  for (const char* text : {"Z", "Zg", "Zg=", "Zg-_", "=Zg=", "Z===", "Zm9v\n"}) {
    EXPECT_FALSE(from_base64(text)) << text;
  }
}

}  // namespace
}  // namespace ddprun
