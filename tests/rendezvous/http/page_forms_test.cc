#include "rendezvous/http/page_forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

const HttpRequest kForm{.path = "/act",
                        .authorization = "",
                        .origin = "http://here:1",
                        .host = "here:1",
                        .is_post = true};

TEST(PageForms, OnlyAPostOfThisPageIsAForm) {
  EXPECT_FALSE(refuse_form(kForm));
  HttpRequest request = kForm;
  request.is_post = false;
  EXPECT_EQ(refuse_form(request)->status, 405);
  request = kForm;
  request.origin = "http://there:1";
  EXPECT_EQ(refuse_form(request)->status, 403);
  request = kForm;
  request.encrypted = true;
  EXPECT_EQ(refuse_form(request)->status, 403) << "the page without TLS is another one";
  request = kForm;
  request.host = "";
  request.origin = "http://";
  EXPECT_EQ(refuse_form(request)->status, 403);
}

TEST(PageForms, ACookieIsForThisSiteAloneAndForNoScript) {
  EXPECT_EQ(cookie_page("n", "v", false).cookie,
            "n=v; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict");
  EXPECT_THAT(cookie_page("n", "v", true).cookie, EndsWith("; SameSite=Strict; Secure"));
}

TEST(PageForms, OnlyARestartIsOfOneGeneration) {
  using What = UserRequest::What;
  EXPECT_FALSE(refuse_late({What::kRestart, "j", 3}, 3));
  EXPECT_FALSE(refuse_late({What::kRestart, "j", 3}, std::nullopt));
  EXPECT_EQ(refuse_late({What::kRestart, "j", 2}, 3)->status, 409);
  EXPECT_FALSE(refuse_late({What::kStop, "j", 2}, 3)) << "a job in a crash loop can be stopped";
}

TEST(PageReply, IsOneLineOrTheLinesOfAgents) {
  EXPECT_EQ(PageReply().take({.done = true, .text = "stopping"})->status, 200);
  const auto refused = PageReply().take({.done = false, .text = "it has ended"});
  EXPECT_EQ(refused->status, 409);
  EXPECT_EQ(*refused->body, "it has ended\n");
  PageReply reply;
  EXPECT_FALSE(reply.take({.done = true, .page = "{\"a\":1}\n", .more = true}));
  EXPECT_FALSE(reply.take({.done = true, .text = "node <b> is silent", .more = true}));
  const auto page = reply.take({.done = true});
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_EQ(page->type, "application/x-ndjson");
  EXPECT_EQ(*page->body, "{\"a\":1}\n{\"notice\":\"node <b> is silent\"}\n");
}

TEST(PageReply, IsTheLinesOfAgentsAlsoIfNoneCame) {
  PageReply reply;
  EXPECT_FALSE(reply.take({.done = true, .more = true}));
  const auto page = reply.take({.done = true});
  ASSERT_TRUE(page);
  EXPECT_EQ(page->type, "application/x-ndjson");
  EXPECT_EQ(*page->body, "");
}

TEST(PageReply, HasABoundAndSaysSo) {
  PageReply reply;
  const std::string half(PageReply::kMaxBytes / 2 + 1, 'x');
  EXPECT_FALSE(reply.take({.done = true, .page = half, .more = true}));
  const auto page = reply.take({.done = true, .page = half, .more = true});
  ASSERT_TRUE(page) << "nothing more is wanted";
  EXPECT_LT(page->body->size(), PageReply::kMaxBytes);
  EXPECT_THAT(*page->body, HasSubstr("is left out"));
}

}  // namespace
}  // namespace ddprun
