#include "launcher/dashboard/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::StartsWith;

const std::string kToken(64, 'a');
const std::string kSession(64, 'b');

class DashboardAccessTest : public testing::Test {
 protected:
  HttpPage give(const std::string& token, std::string_view host = "127.0.0.1:1") {
    const std::string form = "token=" + token;
    const std::string origin = "http://" + std::string(host);
    return access_.take_token({.path = "/token",
                               .authorization = "",
                               .origin = origin,
                               .host = host,
                               .is_post = true,
                               .body = form});
  }
  bool may_use(std::string_view cookie, std::string_view host = "127.0.0.1:1") const {
    return access_.may_use(
        {.path = "/events", .authorization = "", .cookie = cookie, .host = host});
  }

  DashboardAccess access_{kToken, kSession, "1234"};
};

TEST_F(DashboardAccessTest, TheTokenGivesACookieOnce) {
  EXPECT_EQ(give(std::string(64, 'c')).status, 403);
  EXPECT_EQ(give("x").status, 400);
  const HttpPage page = give(kToken);
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.cookie, StartsWith("ddprun_write_1234=" + kSession + "; "));
  const HttpPage again = give(kToken);
  EXPECT_EQ(again.status, 403);
  EXPECT_EQ(again.cookie, "");
}

TEST_F(DashboardAccessTest, AWrongTokenUsesNothingUp) {
  for (int i = 0; i < 100; ++i) EXPECT_EQ(give(std::string(64, 'c')).status, 403);
  EXPECT_EQ(give(kToken).status, 200);
}

TEST_F(DashboardAccessTest, OnlyTheCookieOpensIt) {
  EXPECT_TRUE(may_use("x=1; ddprun_write_1234=" + kSession));
  EXPECT_FALSE(may_use(""));
  EXPECT_FALSE(may_use("ddprun_write_1234=" + kToken));
  EXPECT_FALSE(may_use("ddprun_write_1234="));
  EXPECT_FALSE(may_use("ddprun_write_1235=" + kSession)) << "of another dashboard";
}

// A site may let its name point to 127.0.0.1. Its page is then of the same origin.
TEST_F(DashboardAccessTest, ItIsOnlyUnderLocalNames) {
  EXPECT_FALSE(may_use("ddprun_write_1234=" + kSession, "evil.example:1"));
  EXPECT_EQ(give(kToken, "evil.example:1").status, 403);
  EXPECT_EQ(give(kToken, "localhost:8000").status, 200) << "through ssh -L";
  for (const char* host : {"localhost:1", "127.0.0.1:65535", "[::1]:8000"}) {
    EXPECT_TRUE(is_local_page_host(host)) << host;
  }
  for (const char* host : {"", "localhost", "localhost:", "127.0.0.1:1x", "127.0.0.1.evil:1",
                           "xlocalhost:1", "127.0.0.1@evil:1", ":1"}) {
    EXPECT_FALSE(is_local_page_host(host)) << host;
  }
}

}  // namespace
}  // namespace ddprun
