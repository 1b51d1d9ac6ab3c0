// Tests Keyring: the text format of keys, and the job that each key belongs to.
#include "rendezvous/auth/core/keyring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::Not;

Keyring keys(const std::string& text) { return Keyring::parse(text).value(); }

TEST(Keyring, HasOneKeyForEveryJobAndOthersForSingleOnes) {
  const Keyring ring = keys(
      "# made today\n\n  aaaaaaaaaaaaaaaa \r\njob1 bbbbbbbbbbbbbbbb\n\tjob2\tcccccccccccccccc");
  EXPECT_EQ(ring.key_of("job1"), "bbbbbbbbbbbbbbbb");
  EXPECT_EQ(ring.key_of("job2"), "cccccccccccccccc");
  EXPECT_EQ(ring.key_of("another"), "aaaaaaaaaaaaaaaa");
  EXPECT_EQ(ring.for_every_job(), "aaaaaaaaaaaaaaaa");
  EXPECT_FALSE(ring.empty());
}

TEST(Keyring, WithoutAKeyForEveryJobOthersHaveNone) {
  const Keyring ring = keys("job1 bbbbbbbbbbbbbbbb");
  EXPECT_EQ(ring.key_of("another"), std::nullopt);
  EXPECT_FALSE(ring.empty());
  EXPECT_TRUE(Keyring().empty());
}

TEST(Keyring, SaysWhatIsWrongAndNeverWhatIsWritten) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no key found (expected a line of 16 characters or more)"},
      {"# nothing\n\n", "no key found (expected a line of 16 characters or more)"},
      {"short", "line 1: a key needs at least 16 characters"},
      {"\nshort-secret\n", "line 2: a key needs at least 16 characters"},
      {"job short-secret", "line 1: a key needs at least 16 characters"},
      {"a secret-secret-secret three", "line 1: expected KEY or JOB KEY"},
      {"secret-secret-secret\nsecret-secret-secreT", "line 2: a second key for all jobs"},
      {"j secret-secret-secret\nj secret-secret-secreT", "line 2: job 'j' already has a key"},
  };
  for (const auto& [text, expected] : cases) {
    const auto ring = Keyring::parse(text);
    ASSERT_FALSE(ring) << text;
    EXPECT_EQ(ring.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(ring.error().message(), HasSubstr(expected));
    EXPECT_THAT(ring.error().message(), Not(HasSubstr("secret")));
  }
}

}  // namespace
}  // namespace ddprun
