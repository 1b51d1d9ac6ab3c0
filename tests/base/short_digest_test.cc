#include "base/short_digest.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

// As sha256sum prints them.
TEST(ShortDigest, IsTheBeginningOfSha256) {
  EXPECT_EQ(short_digest(""), "e3b0c44298fc1c149afbf4c8996fb924");
  EXPECT_EQ(short_digest("abc"), "ba7816bf8f01cfea414140de5dae2223");
  EXPECT_EQ(short_digest(std::string(200, 'a')), "c2a908d98f5df987ade41b5fce213067");
}

// The length has its place in the last block, or needs one more.
TEST(ShortDigest, HasAnotherBlockWhereTheLengthDoesNotFit) {
  EXPECT_EQ(short_digest(std::string(55, 'a')), "9f4390f8d30c2dd92ec9f095b65e2b9a");
  EXPECT_EQ(short_digest(std::string(56, 'a')), "b35439a4ac6f0948b6d6f9e3c6af0f5f");
  EXPECT_EQ(short_digest(std::string(64, 'a')), "ffe054fe7ae0cb6dc65c3af9b61d5209");
}

}  // namespace
}  // namespace ddprun
