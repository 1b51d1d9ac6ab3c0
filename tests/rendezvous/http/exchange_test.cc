#include "rendezvous/http/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr std::string_view kHost = "Host: here\r\n";

std::string get(std::string_view target, std::string_view fields = kHost) {
  return "GET " + std::string(target) + " HTTP/1.1\r\n" + std::string(fields) + "\r\n";
}

std::string text_of(const HttpAnswer& answer) {
  return answer.head + (answer.body ? *answer.body : "");
}

class HttpExchangeTest : public testing::Test {
 protected:
  static std::optional<HttpPage> page(const HttpRequest& request) {
    const std::string_view path = request.path;
    if (path == "/page") return HttpPage{.body = body_of("hello\n")};
    if (path == "/busy") return HttpPage{.body = body_of("not now\n"), .status = 503};
    if (path == "/stream") return HttpPage{.is_stream = true};
    if (path == "/token") {
      return HttpPage{
          .body =
              body_of(std::string(request.body) + " from " + std::string(request.origin) + " to " +
                      std::string(request.host) + " with " + std::string(request.cookie) + "\n"),
          .cookie = "c=d; HttpOnly"};
    }
    if (path == "/later") {
      return HttpPage{.later = [](const HttpFinish& finish) { finish(text_page("no", 409)); }};
    }
    if (path == "/moved") {
      return HttpPage{.body = body_of("there\n"), .status = 307, .location = "http://h/moved"};
    }
    return std::nullopt;
  }
  HttpAnswer ask(std::string_view bytes) {
    exchange_.append(bytes);
    return exchange_.next().value_or(HttpAnswer{.head = "no answer"});
  }

  HttpExchange exchange_{page, 100};
};

TEST_F(HttpExchangeTest, AnswersAGetWithThePage) {
  const HttpAnswer answer = ask(get("/page"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_FALSE(answer.last);
  EXPECT_THAT(text_of(answer), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(text_of(answer), HasSubstr("Content-Type: text/plain; charset=utf-8\r\n"));
  EXPECT_THAT(text_of(answer), HasSubstr("Content-Length: 6\r\n"));
  EXPECT_THAT(text_of(answer), EndsWith("\r\n\r\nhello\n"));
}

TEST_F(HttpExchangeTest, ARedirectionNamesThePlace) {
  const HttpAnswer answer = ask(get("/moved"));
  EXPECT_THAT(text_of(answer), StartsWith("HTTP/1.1 307 "));
  EXPECT_THAT(text_of(answer), HasSubstr("Location: http://h/moved\r\n"));
}

TEST_F(HttpExchangeTest, AHeadIsTheSameWithoutTheBody) {
  const HttpAnswer answer = ask("HEAD /page HTTP/1.1\r\nHost: here\r\n\r\n");
  EXPECT_THAT(text_of(answer), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(text_of(answer), HasSubstr("Content-Length: 6\r\n"));
  EXPECT_THAT(text_of(answer), EndsWith("\r\n\r\n"));
}

TEST_F(HttpExchangeTest, AQueryIsNoPartOfThePath) {
  EXPECT_EQ(ask(get("/page?from=prometheus")).status, 200);
}

TEST_F(HttpExchangeTest, UnknownPathsAre404AndTheConnectionGoesOn) {
  EXPECT_EQ(ask(get("/nothing")).status, 404);
  EXPECT_EQ(ask(get("/page/")).status, 404);
  EXPECT_EQ(ask(get("http://here/page")).status, 404);
  EXPECT_EQ(ask(get("/busy")).status, 503);
  EXPECT_EQ(ask(get("/page")).status, 200);
}

TEST_F(HttpExchangeTest, AnswersRequestsThatCameTogetherInTheirOrder) {
  EXPECT_EQ(ask(get("/page") + get("/nothing") + get("/busy")).status, 200);
  EXPECT_EQ(exchange_.next()->status, 404);
  EXPECT_EQ(exchange_.next()->status, 503);
  EXPECT_FALSE(exchange_.next());
}

TEST_F(HttpExchangeTest, ABrowserMayLoadOnlyFilesOfTheService) {
  const std::string head = ask(get("/page")).head;
  EXPECT_THAT(head, HasSubstr("Content-Security-Policy: default-src 'self'; "));
  EXPECT_THAT(head, HasSubstr("frame-ancestors 'none'\r\n"));
  EXPECT_THAT(head, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
}

TEST_F(HttpExchangeTest, AStreamHasNoLengthAndNothingFollowsIt) {
  const HttpAnswer answer = ask(get("/stream") + get("/page"));
  EXPECT_TRUE(answer.is_stream);
  EXPECT_TRUE(answer.last);
  EXPECT_FALSE(answer.body);
  EXPECT_THAT(answer.head, Not(HasSubstr("Content-Length")));
  EXPECT_FALSE(exchange_.next());
}

TEST_F(HttpExchangeTest, AHeadOfAStreamIsNoStream) {
  EXPECT_FALSE(ask("HEAD /stream HTTP/1.1\r\nHost: here\r\n\r\n").is_stream);
}

TEST_F(HttpExchangeTest, APageThatIsMadeLaterIsAnsweredAsAskedFor) {
  const HttpAnswer asked =
      ask("HEAD /later HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n" + get("/page"));
  ASSERT_TRUE(asked.later);
  EXPECT_TRUE(asked.last);
  std::optional<HttpAnswer> answer;
  asked.later([&](const HttpPage& page) { answer = exchange_.finish(page); });
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 409);
  EXPECT_FALSE(answer->body) << "of a HEAD";
  EXPECT_TRUE(answer->last);
  EXPECT_FALSE(exchange_.next());
}

TEST_F(HttpExchangeTest, AFormIsPostedToFewPlaces) {
  const std::string post =
      "POST /token HTTP/1.1\r\nHost: here\r\nOrigin: http://here\r\n"
      "Cookie: a=b\r\nContent-Length: 5\r\n\r\n";
  EXPECT_EQ(ask(post).head, "no answer") << "the body is not here";
  EXPECT_EQ(ask("abc").head, "no answer");
  const HttpAnswer answer = ask("de" + get("/page"));
  EXPECT_THAT(text_of(answer), EndsWith("abcde from http://here to here with a=b\n"));
  EXPECT_THAT(answer.head, HasSubstr("Set-Cookie: c=d; HttpOnly\r\n"));
  EXPECT_EQ(exchange_.next()->status, 200) << "what follows the body is a request";
}

// --- requests that end the connection ---

TEST_F(HttpExchangeTest, AFormHasABound) {
  const std::string post = "POST /token HTTP/1.1\r\nHost: here\r\n";
  for (const auto& [field, status] : std::vector<std::pair<std::string, int>>{
           {"Content-Length: " + std::to_string(HttpExchange::kMaxBodyBytes + 1), 413},
           {"Content-Length: 99999999999", 413},
           {"Transfer-Encoding: chunked", 400}}) {
    HttpExchange exchange(page, 100);
    exchange.append(post + field + "\r\n\r\n");
    const auto answer = exchange.next();
    ASSERT_TRUE(answer) << field;
    EXPECT_EQ(answer->status, status) << field;
    EXPECT_TRUE(answer->last) << field;
  }
}

TEST_F(HttpExchangeTest, OtherMethodsAre405) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "BREW"}) {
    HttpExchange exchange(page, 100);
    exchange.append(std::string(method) + " /page HTTP/1.1\r\nHost: here\r\n" +
                    "Content-Length: 99999999999\r\n\r\nsome of it");
    const auto answer = exchange.next();
    ASSERT_TRUE(answer) << method;
    EXPECT_EQ(answer->status, 405) << method;
    EXPECT_THAT(text_of(*answer), HasSubstr("Allow: GET, HEAD\r\n"));
    EXPECT_THAT(text_of(*answer), HasSubstr("Connection: close\r\n"));
    EXPECT_TRUE(answer->last) << method;
    EXPECT_FALSE(exchange.next()) << "its body is no request";
  }
}

TEST_F(HttpExchangeTest, BadRequestsAre400AndTheLast) {
  const std::vector<std::string> bad{
      "nonsense\r\n",
      "GET /page\r\n",
      "GET /page a\r\n\r\n",  // too short for a version
      "GET /page HTTP/9.9\r\n",
      "GET /page HTTP/1.1\n",
      "GET  HTTP/1.1\r\n",
      "GET /pa\x01ge HTTP/1.1\r\n",
      "PRI * HTTP/2.0\r\n",
      get("/page", "no colon\r\n"),
      get("/page", ""),
      get("/page", "Host: a\r\nHost: b\r\n"),
      get("/page", "Host: here\r\nContent-Length: 1\r\n"),
      get("/page", "Host: here\r\nContent-Length: -1\r\n"),
      get("/page", "Host: here\r\nContent-Length: 1\r\nContent-Length: 2\r\n"),
      get("/page", "Host: here\r\nTransfer-Encoding: chunked\r\n"),
      get("/page", "Host: here\r\nTransfer-Encoding: xchunked\r\n"),
      get("/page", "Host: here\r\nTransfer-Encoding: chunked, identity\r\n"),
      get("/page", "Host: here\r\nTransfer-Encoding: identity\r\n"),
      get("/page", "Host: here\r\nTransfer-Encoding:\r\n"),
      get("/page", "Host: here\r\nX-One: a\r\n b\r\n"),
      get("/page", "Host: here\r\nX-One: a\r\n\tb\r\n"),
      get("/page", " Host: here\r\n"),
  };
  for (const std::string& bytes : bad) {
    HttpExchange exchange(page, 100);
    exchange.append(bytes);
    const auto answer = exchange.next();
    ASSERT_TRUE(answer) << bytes;
    EXPECT_EQ(answer->status, 400) << bytes;
    EXPECT_TRUE(answer->last) << bytes;
    EXPECT_THAT(text_of(*answer), HasSubstr("Connection: close\r\n"));
  }
}

TEST_F(HttpExchangeTest, AnEmptyBodyIsNone) {
  EXPECT_EQ(ask(get("/page", "Host: here\r\nContent-Length: 0\r\n")).status, 200);
}

TEST_F(HttpExchangeTest, AHeaderHasABound) {
  constexpr std::size_t kBound = HttpExchange::kMaxHeaderBytes;
  std::string fits = get("/page", "Host: here\r\nX: \r\n");
  fits.insert(fits.size() - 4, kBound - fits.size(), 'x');
  ASSERT_EQ(fits.size(), kBound);
  EXPECT_EQ(ask(fits).status, 200);
  fits.insert(fits.size() - 4, "x");
  const HttpAnswer answer = ask(fits);
  EXPECT_EQ(answer.status, 431);
  EXPECT_TRUE(answer.last);
}

TEST_F(HttpExchangeTest, AFirstLineWithoutEndHasTheSameBound) {
  EXPECT_EQ(ask(std::string(HttpExchange::kMaxHeaderBytes - 1, 'G')).head, "no answer");
  EXPECT_EQ(ask("G").status, 431);
}

TEST_F(HttpExchangeTest, ARefusalIsTheLastAnswerWhateverHasCome) {
  EXPECT_FALSE(exchange_.has_begun());
  exchange_.append("GET /page HTTP/1.1\r\nHost:");
  EXPECT_FALSE(exchange_.next());
  EXPECT_TRUE(exchange_.has_begun());
  const HttpAnswer answer = exchange_.refuse(408, "too late");
  EXPECT_EQ(answer.status, 408);
  EXPECT_TRUE(answer.last);
  EXPECT_THAT(text_of(answer), EndsWith("too late\n"));
  EXPECT_FALSE(exchange_.next());
}

TEST_F(HttpExchangeTest, TheLastRequestOfAConnectionSaysSo) {
  HttpExchange exchange(page, 2);
  exchange.append(get("/page") + get("/page") + get("/page"));
  EXPECT_FALSE(exchange.next()->last);
  const auto second = exchange.next();
  EXPECT_TRUE(second->last);
  EXPECT_THAT(text_of(*second), HasSubstr("Connection: close\r\n"));
  EXPECT_FALSE(exchange.next());
}

TEST_F(HttpExchangeTest, ClosesWhenTheClientWantsIt) {
  EXPECT_TRUE(ask(get("/page", "Host: here\r\nConnection: close\r\n")).last);
}

TEST_F(HttpExchangeTest, AnOldClientIsClosedAfterItsAnswer) {
  const HttpAnswer answer = ask("GET /page HTTP/1.0\r\n\r\n");
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.last);
}

TEST_F(HttpExchangeTest, HowTheBytesAreCutDoesNotMatter) {
  const std::string bytes = get("/page") + get("/nothing") +
                            "POST /token HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\nabc" +
                            "POST / HTTP/1.1\r\n\r\n";
  std::string whole;
  exchange_.append(bytes);
  while (const auto answer = exchange_.next()) whole += text_of(*answer);
  HttpExchange exchange(page, 100);
  std::string pieces;
  for (const char byte : bytes) {
    exchange.append({&byte, 1});
    while (const auto answer = exchange.next()) pieces += text_of(*answer);
  }
  EXPECT_EQ(pieces, whole);
  EXPECT_THAT(whole, Not(HasSubstr("400")));
}

}  // namespace
}  // namespace ddprun
