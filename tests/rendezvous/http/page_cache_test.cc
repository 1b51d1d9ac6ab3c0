#include "rendezvous/http/page_cache.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::milliseconds;

TEST(PageCache, APageThatTookLongIsNotMadeAgainSoon) {
  const TimePoint begun(std::chrono::seconds(100));
  const TimePoint done = begun + milliseconds(90);
  PageCache cache;
  EXPECT_FALSE(cache.find(begun));
  cache.keep({.body = body_of("large")}, begun, done);
  ASSERT_TRUE(cache.find(done + milliseconds(1799)));
  EXPECT_EQ(*cache.find(done)->body, "large");
  EXPECT_FALSE(cache.find(done + milliseconds(1800)));
}

TEST(PageCache, APageThatTookNoTimeIsMadeForEveryone) {
  const TimePoint now(std::chrono::seconds(100));
  PageCache cache;
  cache.keep({.body = body_of("small")}, now, now);
  EXPECT_FALSE(cache.find(now));
}

}  // namespace
}  // namespace ddprun
