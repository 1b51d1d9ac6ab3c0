#include "rendezvous/http/core/browser.h"

#include <gtest/gtest.h>

#include <string>

namespace ddprun {
namespace {

TEST(Browser, FindsACookieAmongOthers) {
  EXPECT_EQ(cookie_value("a=1; ddprun_read=x; b=2", kReadCookie), "x");
  EXPECT_EQ(cookie_value("ddprun_read=x", kReadCookie), "x");
  EXPECT_EQ(cookie_value("ddprun_read=x; ddprun_read=y", kReadCookie), "x");
}

TEST(Browser, TakesNoOtherCookieForIt) {
  EXPECT_EQ(cookie_value("", kReadCookie), "");
  EXPECT_EQ(cookie_value("xddprun_read=x", kReadCookie), "");
  EXPECT_EQ(cookie_value("ddprun_read_more=x; a=ddprun_read=x", kReadCookie), "");
  EXPECT_EQ(cookie_value("ddprun_read", kReadCookie), "");
  EXPECT_EQ(cookie_value(";;;; ", kReadCookie), "");
}

TEST(Browser, AFormHasATokenAndNothingElse) {
  const std::string token(64, 'a');
  EXPECT_EQ(token_in_form("token=" + token), token);
  for (const std::string& form :
       {std::string(), std::string("token="), "token=" + token + "a", "token=" + token.substr(1),
        "token=" + token + "&x=1", "x=1&token=" + token, "token=" + token.substr(1) + "A", token}) {
    EXPECT_EQ(token_in_form(form), std::nullopt) << form;
  }
}

TEST(Browser, TheOriginIsTheHostWithTheScheme) {
  EXPECT_TRUE(is_same_origin("http://here:29400", "here:29400", false));
  EXPECT_TRUE(is_same_origin("https://here:29400", "here:29400", true));
  EXPECT_FALSE(is_same_origin("http://here:29400", "here:29400", true));
  EXPECT_FALSE(is_same_origin("http://here:29401", "here:29400", false));
  EXPECT_FALSE(is_same_origin("http://there:29400", "here:29400", false));
  EXPECT_FALSE(is_same_origin("null", "here:29400", false));
  EXPECT_FALSE(is_same_origin("", "here:29400", false));
  EXPECT_FALSE(is_same_origin("http://", "", false));
}

}  // namespace
}  // namespace ddprun
