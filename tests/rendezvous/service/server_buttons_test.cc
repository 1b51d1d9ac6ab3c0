// Tests the buttons of the page: who may press them, and what they do to a job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "rendezvous/auth/core/proof.h"
#include "rendezvous/http/exchange.h"
#include "rendezvous/service/server.h"
#include "tests/support/certificates.h"
#include "tests/support/control_frame.h"
#include "tests/support/hello_of.h"
#include "tests/support/raw_tls_client.h"
#include "tests/support/running_service.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing_support::Authority;
using testing_support::await;
using testing_support::hello_of;
using testing_support::IssuedFiles;
using testing_support::RawTcpClient;
using testing_support::RawTlsClient;
using testing_support::RunningService;
using testing_support::say;
using testing_support::TemporaryDirectory;

constexpr const char* kKey = "0123456789abcdef";

std::string cookie_in(const std::string& answer) {
  const std::size_t begin = answer.find("Set-Cookie: ") + 12;
  return answer.substr(begin, answer.find(';', begin) - begin);
}

class ServerWithButtons : public testing::Test {
 protected:
  ServerWithButtons() {
    service_.set_tls({.cert = own_.cert, .key = own_.key, .ca = {}});
    service_.set_keys(std::string(kKey) + "\nsecret 0123456789abcdefgh");
    const std::string answer = post("/token", "token=" + write_token_of(kKey));
    EXPECT_THAT(answer, HasSubstr("; HttpOnly; SameSite=Strict; Secure\r\n"));
    cookie_ = cookie_in(answer);
  }

  // Posts the form as a browser does that has this cookie. Returns the answer.
  std::string post(const std::string& path, const std::string& form, const std::string& cookie = "",
                   const std::string& origin = "https://here:1") {
    RawTlsClient browser(service_.port(), trust_);
    browser.send("POST " + path + " HTTP/1.1\r\nHost: here:1\r\nOrigin: " + origin +
                 "\r\nCookie: " + cookie + "\r\nConnection: close\r\nContent-Length: " +
                 std::to_string(form.size()) + "\r\n\r\n" + form);
    return browser.receive(1 << 20);
  }
  std::string order(const std::string& form, const std::string& cookie,
                    const std::string& origin = "https://here:1") {
    return post("/act", form, cookie, origin);
  }
  // Lets the agent begin the job "job".
  void begin_job(RawTlsClient& agent) {
    ASSERT_TRUE(std::holds_alternative<Proven>(
        testing_support::prove(agent, kKey, "job", agent.channel().binding())));
    Hello hello = hello_of("job", "a");
    hello.node.supports_stacks = true;
    say(agent, hello);
    ASSERT_TRUE(await<Assignment>(agent));
  }

  const TemporaryDirectory directory_;
  const Authority ours_{directory_.path(), "ours"};
  const IssuedFiles own_ = ours_.issue("service");
  const TlsContextPtr trust_ =
      TlsContext::for_agent({.cert = {}, .key = {}, .ca = ours_.ca_file()})->context;
  RunningService service_{{.service_id = "s"}};
  std::string cookie_;
};

TEST_F(ServerWithButtons, AWriteTokenIsAcceptedOnlyInsideTls) {
  EXPECT_THAT(cookie_, StartsWith("ddprun_write_"));
  RunningService plain{{.service_id = "s"}};
  plain.set_keys(kKey);
  RawTcpClient browser(plain.port());
  const std::string form = "token=" + write_token_of(kKey);
  browser.send(
      "POST /token HTTP/1.1\r\nHost: here:1\r\nOrigin: http://here:1\r\nConnection: "
      "close\r\nContent-Length: " +
      std::to_string(form.size()) + "\r\n\r\n" + form);
  const std::string answer = browser.receive(1 << 16);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(answer, HasSubstr("accepted only over TLS"));
  EXPECT_THAT(answer, Not(HasSubstr("Set-Cookie")));
  // A cookie that a browser got elsewhere opens nothing without TLS either.
  RawTcpClient other(plain.port());
  other.send("GET /rights HTTP/1.1\r\nHost: here:1\r\nCookie: " + cookie_ +
             "\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(other.receive(1 << 16), HasSubstr(R"("acts":false)"));
}

TEST_F(ServerWithButtons, StopEndsTheJobAndTheSecondPressIsToldWhatIsGoingOn) {
  RawTlsClient agent(service_.port(), trust_);
  ASSERT_NO_FATAL_FAILURE(begin_job(agent));
  const std::string form = "order=stop&job=job&generation=0";
  const std::string answer = order(form, cookie_);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, EndsWith("\r\n\r\njob 'job' is being stopped on 1 node\n"));
  const auto stop = await<Stop>(agent);
  ASSERT_TRUE(stop);
  EXPECT_THAT(stop->reason, HasSubstr("a page on 127.0.0.1 asked for it"));
  EXPECT_THAT(order(form, cookie_), StartsWith("HTTP/1.1 200 "));
  const std::string restart = order("order=restart&job=job&generation=0", cookie_);
  EXPECT_THAT(restart, StartsWith("HTTP/1.1 409 "));
  EXPECT_THAT(restart, HasSubstr("is being stopped"));
}

TEST_F(ServerWithButtons, RestartIsOnlyForTheGenerationThatThePageShowed) {
  RawTlsClient agent(service_.port(), trust_);
  ASSERT_NO_FATAL_FAILURE(begin_job(agent));
  const std::string late = order("order=restart&job=job&generation=4", cookie_);
  EXPECT_THAT(late, StartsWith("HTTP/1.1 409 "));
  EXPECT_THAT(late, HasSubstr("the job is at generation 0, and the page showed 4"));
  EXPECT_THAT(order("order=restart&job=job&generation=0", cookie_), StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(await<Stop>(agent));
}

TEST_F(ServerWithButtons, StacksComeFromTheAgents) {
  RawTlsClient agent(service_.port(), trust_);
  ASSERT_NO_FATAL_FAILURE(begin_job(agent));
  auto answer = std::async(std::launch::async,
                           [&] { return order("order=stacks&job=job&generation=0", cookie_); });
  const auto begin = await<OutputDirective>(agent);
  ASSERT_TRUE(begin);
  EXPECT_TRUE(begin->stacks);
  EXPECT_EQ(begin->rank, std::nullopt);
  say(agent, OutputPage{.inquiry = begin->inquiry, .is_ready = true});
  ASSERT_TRUE(await<OutputDirective>(agent)) << "its turn";
  say(agent,
      OutputPage{.inquiry = begin->inquiry, .lines = "{\"frames\":[\"<b>\"]}\n", .is_last = true});
  const std::string text = answer.get();
  EXPECT_THAT(text, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(text, HasSubstr("Content-Type: application/x-ndjson\r\n"));
  EXPECT_THAT(text, EndsWith("\r\n\r\n{\"frames\":[\"<b>\"]}\n"));
}

TEST_F(ServerWithButtons, AnAgentIsAskedForTheStackOfOneRank) {
  RawTlsClient agent(service_.port(), trust_);
  ASSERT_NO_FATAL_FAILURE(begin_job(agent));
  auto answer = std::async(std::launch::async, [&] {
    return order("order=stacks&job=job&generation=0&rank=0", cookie_);
  });
  const auto begin = await<OutputDirective>(agent);
  ASSERT_TRUE(begin);
  EXPECT_TRUE(begin->stacks);
  EXPECT_EQ(begin->rank, Rank(0));
  say(agent, OutputPage{.inquiry = begin->inquiry, .is_last = true});
  EXPECT_THAT(answer.get(), StartsWith("HTTP/1.1 200 "));
}

TEST_F(ServerWithButtons, WhoMayPressThemMayReadOutput) {
  const auto answer = [&](const std::string& job, const std::string& cookie,
                          const std::string& path = "/output/0") {
    RawTlsClient browser(service_.port(), trust_);
    browser.send("GET " + path + "?job=" + job +
                 " HTTP/1.1\r\nHost: evil.example:1\r\nCookie: " + cookie + "\r\n\r\n");
    return browser.receive(12);
  };
  EXPECT_EQ(answer("job", cookie_), "HTTP/1.1 200");
  EXPECT_EQ(answer("secret", cookie_), "HTTP/1.1 403") << "it has its own key";
  EXPECT_EQ(answer("job", cookie_ + "0"), "HTTP/1.1 401");
  const std::string read = cookie_in(post("/token", "token=" + read_token_of(kKey)));
  EXPECT_EQ(answer("job", read), "HTTP/1.1 403");
  EXPECT_EQ(answer("job", cookie_, "/flight/0"), "HTTP/1.1 409") << "the job is not known";
  EXPECT_EQ(answer("secret", cookie_, "/flight/0"), "HTTP/1.1 403");
  EXPECT_EQ(answer("job", read, "/flight/0"), "HTTP/1.1 403");
}

TEST_F(ServerWithButtons, WithoutTheCookieOrFromElsewhereNothingIsDone) {
  const std::string form = "order=stop&job=job&generation=0";
  const std::string read = cookie_in(post("/token", "token=" + read_token_of(kKey)));
  const auto starts = [&](const std::string& answer, int status) {
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 " + std::to_string(status) + " "));
    const std::size_t body = answer.find("\r\n\r\n") + 4;
    EXPECT_EQ(answer.find('\n', body), answer.size() - 1) << "one line: " << answer;
  };
  starts(order(form, ""), 403);
  starts(order(form, read), 403);
  starts(order(form, cookie_ + "0"), 403);
  starts(order(form, cookie_, "https://there:1"), 403);
  starts(order(form, cookie_, "http://here:1"), 403);
  starts(order(form, cookie_, "null"), 403);
  starts(order("order=stop", cookie_), 400);
  starts(order(form + "&x=1", cookie_), 400);
  starts(order(std::string(HttpExchange::kMaxBodyBytes + 1, 'x'), cookie_), 413);
  starts(order(form, cookie_), 409);                                  // there is no such job
  starts(order("order=stop&job=secret&generation=0", cookie_), 403);  // it has its own key
}

}  // namespace
}  // namespace ddprun
