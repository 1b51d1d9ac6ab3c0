#include "rendezvous/http/core/browser.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rendezvous/protocol/core/control_message.h"

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

TEST(Browser, AFormHasItsFieldsInTheirOrderAndNoOthers) {
  using Values = std::vector<std::string>;
  EXPECT_EQ(form_values("a=1&b=", {"a", "b"}), (Values{"1", ""}));
  EXPECT_EQ(form_values("a=x+y%26%3D%C3%A9", {"a"}), (Values{"x y&=\xC3\xA9"}));
  for (const char* form :
       {"", "a", "a=1", "b=2&a=1", "a=1&b=2&", "a=1&b=2&c=3", "&a=1&b=2", "a=1&a=1", "A=1&b=2",
        "a=1;b=2", "a=<&b=", "a=%&b=", "a=%4&b=", "a=%zz&b=", "a=%c3&b=", "a=\n&b="}) {
    EXPECT_EQ(form_values(form, {"a", "b"}), std::nullopt) << form;
  }
}

TEST(Browser, AnOrderNamesTheJobAndTheGenerationThatThePageShowed) {
  using What = UserRequest::What;
  EXPECT_EQ(order_in_form("order=stop&job=train&generation=3"),
            (PageOrder{What::kStop, "train", 3}));
  EXPECT_EQ(order_in_form("order=restart&job=%3Cb%3E&generation=-1"),
            (PageOrder{What::kRestart, "<b>", -1}));
  EXPECT_EQ(order_in_form("order=stacks&job=a&generation=0"), (PageOrder{What::kStacks, "a", 0}));
  EXPECT_EQ(order_in_form("order=stacks&job=a&generation=0&rank=17"),
            (PageOrder{What::kStacks, "a", 0, Rank(17)}));
  for (const char* form :
       {"order=stop&job=a&generation=0&rank=1", "order=stacks&job=a&generation=0&rank=-1",
        "order=stacks&job=a&generation=0&rank=", "order=stacks&job=a&generation=0&rank=1&rank=2",
        "order=stacks&job=a&rank=1&generation=0", "order=stacks&job=a&generation=0&rank=9999999999",
        "order=signal&job=a&generation=0", "order=logs&job=a&generation=0",
        "order=&job=a&generation=0", "order=stop&job=&generation=0",
        "order=stop&job=a%0A&generation=0",
        "order=stop&job=a&generation=", "order=stop&job=a&generation=1x",
        "order=stop&job=a&generation=99999999999999999999", "order=stop&job=a",
        "order=stop&order=stop&job=a&generation=0", "job=a&order=stop&generation=0"}) {
    EXPECT_EQ(order_in_form(form), std::nullopt) << form;
  }
  const std::string id(kMaxNameBytes, 'x');
  EXPECT_TRUE(order_in_form("order=stop&job=" + id + "&generation=0"));
  EXPECT_FALSE(order_in_form("order=stop&job=" + id + "x&generation=0"));
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

TEST(RankInPath, IsADecimalNumber) {
  EXPECT_EQ(rank_in_path("/output/0", "/output/"), Rank(0));
  EXPECT_EQ(rank_in_path("/output/65535", "/output/"), Rank(65535));
  for (const char* path : {"/output/", "/output/-1", "/output/+1", "/output/1/", "/output/0x1",
                           "/output/ 1", "/output/99999999999", "/output", "/flight/0"}) {
    EXPECT_EQ(rank_in_path(path, "/output/"), std::nullopt) << path;
  }
}

TEST(NameOfNoOtherSite, IsAnAddressAnOwnNameOrAShortOne) {
  for (const char* host : {"127.0.0.1", "10.0.0.7:29400", "[::1]", "[fd00::7]:29400", "localhost:1",
                           "node0", "node0:29400", "node0.cluster.example:29400"}) {
    EXPECT_TRUE(is_name_of_no_other_site(host, "node0.cluster.example")) << host;
    EXPECT_TRUE(is_name_of_no_other_site(host, "Node0.CLUSTER.example")) << host;
  }
  for (const char* host : {"", ":1", "evil.example", "evil.example:29400", "10.0.0.7.evil.example",
                           "node0.", "node0.cluster.example.evil:1", "x.node0.cluster.example:1"}) {
    EXPECT_FALSE(is_name_of_no_other_site(host, "node0.cluster.example")) << host;
  }
}

}  // namespace
}  // namespace ddprun
