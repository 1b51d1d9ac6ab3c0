#include "base/utf8.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using namespace std::literals;

TEST(Utf8, KnowsCharactersAndWhatIsNone) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("a\0\x7f"sv));
  for (const std::string_view character :
       {"\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbf",
        "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(character_bytes(character), character.size());
    EXPECT_EQ(character_bytes(std::string(character) + "a"), character.size());
    EXPECT_FALSE(is_utf8(character.substr(0, character.size() - 1))) << "it is cut short";
  }
  for (const std::string_view bytes :
       {"\x80", "\xc0\xaf", "\xc1\xbf", "\xc2\x41", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(character_bytes(bytes), 0u);
    EXPECT_FALSE(is_utf8("a" + std::string(bytes)));
  }
}

}  // namespace
}  // namespace ddprun
