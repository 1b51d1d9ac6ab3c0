// Tests HTTP on real sockets, also with hostile clients.
#include "rendezvous/http/entry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/post.hpp>
#include <memory>
#include <optional>
#include <vector>

#include "rendezvous/net/tcp_acceptor.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_tcp_client.h"
#include "tests/support/raw_tls_client.h"
#include "tests/support/running_server.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::eventually;
using testing_support::RawTcpClient;

constexpr std::string_view kGet = "GET /page HTTP/1.1\r\nHost: here\r\n\r\n";
constexpr std::string_view kGetLarge = "GET /large HTTP/1.1\r\nHost: here\r\n\r\n";
constexpr std::string_view kGetEvents = "GET /events HTTP/1.1\r\nHost: here\r\n\r\n";
constexpr std::string_view kGetLater = "GET /later HTTP/1.1\r\nHost: here\r\n\r\n";
constexpr std::size_t kLarge = 1 << 20;

constexpr std::string_view kGetFeed = "GET /feed HTTP/1.1\r\nHost: here\r\n\r\n";

// Feed: a feed that a test fills. `living` counts feeds.
struct Feed final : HttpFeed {
  explicit Feed(int& living) : count(living) { ++count; }
  ~Feed() override { --count; }
  void begin(std::function<void()> on_news) override { wake = std::move(on_news); }
  std::string take() override { return std::exchange(events, ""); }
  void add(const std::string& text) {
    events += "data: " + text + "\n\n";
    if (wake) wake();
  }

  int& count;
  std::string events;
  std::function<void()> wake;
};

// Server: an acceptor that hands connections to the entry. In ddprun the rendezvous service does
// this.
class Server {
 public:
  // tls: nullptr for http, otherwise for https.
  Server(boost::asio::io_context& io, UniqueFd listener, const HttpLimits& limits,
         const TlsContextPtr& tls)
      : io_(io),
        entry_([this](const HttpRequest& request) { return page(request); }, limits,
               [this] { return body_of(edition()); }),
        acceptor_(io, std::move(listener),
                  {.client =
                       [this, tls](auto socket, const auto&) {
                         const auto wire = std::make_shared<Transport>(std::move(socket));
                         if (tls) wire->start_tls(TlsChannel::service(tls));
                         entry_.adopt(wire, "");
                       },
                   .cannot_accept = [](const std::string&) {}}) {}
  void start() { acceptor_.open(); }
  HttpCounters counters() const { return entry_.counters(); }
  void change(std::string status) {
    status_ = std::move(status);
    entry_.changed();
  }
  void close_readers() { entry_.close_readers(); }
  int feeds() const { return feed_count_; }
  // Adds this text to the newest feed, that many times. Returns false if it has not begun.
  bool feed(const std::string& text, int times) {
    const auto feed = feed_.lock();
    if (!feed || !feed->wake) return false;
    for (int i = 0; i < times; ++i) feed->add(text);
    return true;
  }
  bool is_asked_for_later() const { return static_cast<bool>(later_); }
  void answer_later() { later_(text_page("hello")); }
  void show_last(std::string status) {
    status_ = std::move(status);
    entry_.show_last();
  }

 private:
  std::string edition() const { return "data: " + status_ + "\n\n"; }
  std::optional<HttpPage> page(const HttpRequest& request) {
    const std::string_view path = request.path;
    if (path == "/page") return HttpPage{.body = body_of("hello\n")};
    if (path == "/sealed") return HttpPage{.body = body_of(request.encrypted ? "yes\n" : "no\n")};
    if (path == "/events") return HttpPage{.type = "text/event-stream", .is_stream = true};
    if (path == "/feed") {
      const auto feed = std::make_shared<Feed>(feed_count_);
      feed_ = feed;
      return HttpPage{.type = "text/event-stream", .is_stream = true, .feed = feed};
    }
    if (path == "/later") {
      return HttpPage{.later = [this](const HttpFinish& finish) { later_ = finish; }};
    }
    if (path == "/refused") {  // after its head has been sent
      boost::asio::post(io_, [this] { close_readers(); });
      return HttpPage{.type = "text/event-stream", .is_stream = true};
    }
    if (path == "/large") return HttpPage{.body = body_of(std::string(kLarge, 'x'))};
    return std::nullopt;
  }
  boost::asio::io_context& io_;
  std::string status_ = "first";
  int feed_count_ = 0;
  std::weak_ptr<Feed> feed_;
  HttpFinish later_;  // of /later; empty: it was not asked for
  HttpEntry entry_;
  TcpAcceptor acceptor_;
};

class RunningHttp : public testing_support::RunningServer<Server> {
 public:
  explicit RunningHttp(const HttpLimits& limits = {}, const TlsContextPtr& tls = nullptr)
      : RunningServer({.host = "127.0.0.1", .port = 0}, Start::kNow,
                      [&](auto& io, Logger&, UniqueFd socket) {
                        return std::make_shared<Server>(io, std::move(socket), limits, tls);
                      }) {}
  HttpCounters counters() {
    HttpCounters counters;
    on_thread([&] { counters = server().counters(); });
    return counters;
  }
  void change(const std::string& status) {
    on_thread([&] { server().change(status); });
  }
  void show_last(const std::string& status) {
    on_thread([&] { server().show_last(status); });
  }
  void close_readers() {
    on_thread([&] { server().close_readers(); });
  }
  bool is_asked_for_later() {
    bool is_asked = false;
    on_thread([&] { is_asked = server().is_asked_for_later(); });
    return is_asked;
  }
  int feeds() {
    int count = 0;
    on_thread([&] { count = server().feeds(); });
    return count;
  }
  bool feed(const std::string& text, int times = 1) {
    bool was_taken = false;
    on_thread([&] { was_taken = server().feed(text, times); });
    return was_taken;
  }
  void answer_later() {
    on_thread([&] { server().answer_later(); });
  }
};

std::string receive_all(RawTcpClient& client) { return client.receive(4 * kLarge); }

// Receives one answer with a short body. The connection stays open.
std::string receive_one(RawTcpClient& client) { return client.receive_through("hello\n"); }

TEST(HttpEntry, AnswersSeveralRequestsOnOneConnection) {
  RunningHttp http;
  RawTcpClient client(http.port());
  for (int i = 0; i < 3; ++i) {
    client.send(kGet);
    EXPECT_THAT(receive_one(client), StartsWith("HTTP/1.1 200 OK\r\n"));
  }
  EXPECT_EQ(http.counters().connections, 1u);
  EXPECT_EQ(http.counters().answers, (std::map<int, std::uint64_t>{{200, 3}}));
  client.close();
  EXPECT_TRUE(eventually([&] { return http.counters().connections == 0; }));
}

TEST(HttpEntry, AnswersRequestsThatComeByteByByte) {
  RunningHttp http;
  RawTcpClient client(http.port());
  for (const char byte : kGet) client.send({&byte, 1});
  EXPECT_THAT(receive_one(client), EndsWith("hello\n"));
}

TEST(HttpEntry, ALargeAnswerArrivesWhole) {
  RunningHttp http;
  RawTcpClient client(http.port());
  client.send("GET /large HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(receive_all(client), EndsWith(std::string(kLarge, 'x')));
}

// A server with a certificate, and a client that trusts it.
struct HttpOverTls {
  const testing_support::TemporaryDirectory directory;
  const testing_support::Authority authority{directory.path(), "ours"};
  const testing_support::IssuedFiles own = authority.issue("service");
  RunningHttp server{
      {}, TlsContext::for_service({.cert = own.cert, .key = own.key, .ca = {}})->context};
  testing_support::RawTlsClient client{
      server.port(),
      TlsContext::for_agent({.cert = {}, .key = {}, .ca = authority.ca_file()})->context};
};

TEST(HttpEntry, IsHttpsOverTls) {
  HttpOverTls over_tls;
  testing_support::RawTlsClient& client = over_tls.client;
  client.send("GET /sealed HTTP/1.1\r\nHost: here\r\n\r\n");
  const std::string first = client.receive(1);
  client.send("GET /large HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
  const std::string answers = first + client.receive(4 * kLarge);
  EXPECT_THAT(answers, HasSubstr("\r\n\r\nyes\n"));
  EXPECT_TRUE(answers.ends_with("\r\n\r\n" + std::string(kLarge, 'x'))) << answers.size();
  EXPECT_TRUE(client.channel().is_ended()) << "the end is said, not cut off";
}

// --- readers of events ---

TEST(HttpEntry, AReaderIsSentAnEditionAtOnceAndEachChangeThen) {
  RunningHttp http;
  RawTcpClient reader(http.port());
  reader.send(kGetEvents);
  const std::string first = reader.receive_through("first\n\n");
  EXPECT_THAT(first, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"));
  EXPECT_THAT(first, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(first, testing::Not(HasSubstr("Content-Length")));
  http.change("second");
  EXPECT_EQ(reader.receive_through("second\n\n"), "data: second\n\n");
  EXPECT_EQ(http.counters().connections, 1u);
  reader.close();
  EXPECT_TRUE(eventually([&] { return http.counters().connections == 0; }));
}

TEST(HttpEntry, AReaderOfAFeedIsSentThatAlone) {
  RunningHttp http;
  RawTcpClient reader(http.port());
  reader.send(kGetFeed);
  ASSERT_TRUE(eventually([&] { return http.feed("one"); }));
  EXPECT_THAT(reader.receive_through("one\n\n"),
              StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"));
  http.change("second");  // of the other stream
  EXPECT_TRUE(http.feed("two", 2));
  EXPECT_EQ(reader.receive_through("two\n\ndata: two\n\n"), "data: two\n\ndata: two\n\n");
  EXPECT_EQ(http.feeds(), 1);
  reader.close();
  EXPECT_TRUE(eventually([&] { return http.feeds() == 0; }));
  EXPECT_EQ(http.counters().connections, 0u);
}

TEST(HttpEntry, AFeedThatIsNotReadIsClosedAndTheOthersGoOn) {
  RunningHttp http({.patience = milliseconds(2000)});
  RawTcpClient slow(http.port(), "127.0.0.1", 4096), good(http.port());
  good.send(kGetEvents);
  good.receive_through("first\n\n");
  slow.send(kGetFeed);
  ASSERT_TRUE(eventually([&] { return http.feed(std::string(kLarge, 'x'), 8); }));
  http.change("second");
  EXPECT_THAT(good.receive_through("second\n\n"), EndsWith("data: second\n\n"));
  EXPECT_TRUE(eventually([&] { return http.feeds() == 0; }));
  EXPECT_EQ(http.counters().connections, 1u);
}

// A reader that is gone is found only by what it is sent.
TEST(HttpEntry, AFeedWithoutNewsSendsComments) {
  RunningHttp http({.quiet = milliseconds(100)});
  RawTcpClient reader(http.port());
  reader.send(kGetFeed);
  reader.receive_through("\r\n\r\n");
  EXPECT_EQ(reader.receive_through("\n\n"), ": \n\n");
  EXPECT_EQ(reader.receive_through("\n\n"), ": \n\n");
  ASSERT_TRUE(http.feed("one"));
  EXPECT_THAT(reader.receive_through("one\n\n"), EndsWith("data: one\n\n"));
  EXPECT_EQ(reader.receive_through("\n\n"), ": \n\n");
}

TEST(HttpEntry, FeedsCountAsReadersAndAHeadBeginsNone) {
  RunningHttp http({.readers = 1});
  RawTcpClient head(http.port()), one(http.port()), two(http.port());
  head.send("HEAD /feed HTTP/1.1\r\nHost: here\r\n\r\n");
  EXPECT_THAT(receive_all(head), EndsWith("\r\n\r\n"));
  EXPECT_EQ(http.feeds(), 0);
  one.send(kGetFeed);
  ASSERT_TRUE(eventually([&] { return http.feed("one"); }));
  two.send(kGetFeed);
  EXPECT_THAT(receive_all(two), StartsWith("HTTP/1.1 503 "));
  EXPECT_EQ(http.feeds(), 1);
  http.close_readers();
  EXPECT_EQ(http.feeds(), 0);
}

TEST(HttpEntry, AHeadOfAStreamHasNoEvents) {
  RunningHttp http;
  RawTcpClient client(http.port());
  client.send("HEAD /events HTTP/1.1\r\nHost: here\r\n\r\n");
  EXPECT_THAT(receive_all(client), EndsWith("\r\n\r\n"));
}

TEST(HttpEntry, OneReaderMoreThanTheBoundIsToldSoAndTheOthersGoOn) {
  RunningHttp http({.readers = 2});
  RawTcpClient one(http.port()), two(http.port()), three(http.port());
  for (RawTcpClient* const client : {&one, &two}) {
    client->send(kGetEvents);
    client->receive_through("first\n\n");
  }
  three.send(kGetEvents);
  const std::string refusal = receive_all(three);
  EXPECT_THAT(refusal, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(refusal, EndsWith("too many pages are open: try again later\n"));
  http.change("second");
  EXPECT_THAT(one.receive_through("second\n\n"), EndsWith("data: second\n\n"));
  EXPECT_THAT(two.receive_through("second\n\n"), EndsWith("data: second\n\n"));
}

TEST(HttpEntry, AReaderThatReadsNothingIsClosedAndTheOthersGoOn) {
  RunningHttp http({.patience = milliseconds(2000)});
  RawTcpClient slow(http.port(), "127.0.0.1", 4096), good(http.port());
  good.send(kGetEvents);
  good.receive_through("first\n\n");
  http.change(std::string(8 * kLarge, 'x'));  // more than the sockets take
  slow.send(kGetEvents);
  EXPECT_TRUE(eventually([&] { return http.counters().answers[200] == 2; }));
  EXPECT_EQ(good.receive(8 * kLarge + 8).size(), 8 * kLarge + 8);
  EXPECT_TRUE(eventually([&] { return http.counters().connections == 1; }));
}

TEST(HttpEntry, AReaderMayBeSilentForLongerThanThePatience) {
  RunningHttp http({.patience = milliseconds(300)});
  RawTcpClient reader(http.port());
  reader.send(kGetEvents);
  reader.receive_through("first\n\n");
  http.change("second");  // half a second later
  EXPECT_EQ(reader.receive_through("second\n\n"), "data: second\n\n");
}

TEST(HttpEntry, ReadersAreClosedWhenTheyMustBeCheckedAgain) {
  RunningHttp http;
  RawTcpClient reader(http.port());
  reader.send(kGetEvents);
  reader.receive_through("first\n\n");
  http.close_readers();
  EXPECT_TRUE(reader.is_closed());
  EXPECT_EQ(http.counters().connections, 0u);
  RawTcpClient again(http.port());
  again.send(kGetEvents);
  EXPECT_THAT(again.receive_through("first\n\n"), EndsWith("data: first\n\n"));
}

TEST(HttpEntry, AReaderWhoseHeadIsInTransitIsClosedToo) {
  RunningHttp http;
  RawTcpClient reader(http.port());
  reader.send("GET /refused HTTP/1.1\r\nHost: here\r\n\r\n");
  EXPECT_THAT(receive_all(reader), testing::Not(HasSubstr("data: ")));
  EXPECT_EQ(http.counters().connections, 0u);
}

TEST(HttpEntry, TheLastEditionArrivesAlthoughTheServerEndsAtOnce) {
  auto http = std::make_unique<RunningHttp>();
  RawTcpClient reader(http->port());
  reader.send(kGetEvents);
  reader.receive_through("first\n\n");
  // The write of the first edition has been completed when later work runs.
  EXPECT_EQ(http->counters().connections, 1u);
  http->show_last("last");
  http.reset();
  EXPECT_EQ(receive_all(reader), "data: last\n\n");
}

TEST(HttpEntry, EventsGoOverTlsToo) {
  HttpOverTls over_tls;
  testing_support::RawTlsClient& client = over_tls.client;
  client.send(std::string(kGetEvents));
  std::string answer;
  while (!answer.ends_with("data: first\n\n")) {
    const std::string more = client.receive(1);
    ASSERT_FALSE(more.empty()) << answer;
    answer += more;
  }
}

// --- limits ---

TEST(HttpEntry, TheNumberOfRequestsOfAConnection) {
  RunningHttp http({.requests = 2});
  RawTcpClient client(http.port());
  client.send(std::string(kGet) + std::string(kGet) + std::string(kGet));
  const std::string answers = receive_all(client);
  EXPECT_THAT(answers, HasSubstr("Connection: close"));
  EXPECT_EQ(http.counters().answers, (std::map<int, std::uint64_t>{{200, 2}}));
}

TEST(HttpEntry, ABadRequestIsAnsweredAndClosed) {
  RunningHttp http;
  RawTcpClient client(http.port());
  client.send("nonsense\r\n\r\n");
  EXPECT_THAT(receive_all(client), StartsWith("HTTP/1.1 400 "));
  client.close();
  EXPECT_TRUE(eventually([&] { return http.counters().connections == 0; }));
}

TEST(HttpEntry, WhoPostsGetsTheAnswerAlthoughItsBodyIsNotRead) {
  RunningHttp http;
  RawTcpClient client(http.port());
  client.send("POST /page HTTP/1.1\r\nHost: here\r\nContent-Length: 20000\r\n\r\n" +
              std::string(20000, 'b'));
  EXPECT_THAT(receive_all(client), StartsWith("HTTP/1.1 405 "));
}

TEST(HttpEntry, WhoSendsOnAndOnAfterTheLastAnswerIsCutOff) {
  RunningHttp http({.patience = std::chrono::hours(1)});
  RawTcpClient client(http.port());
  client.send("POST /page HTTP/1.1\r\nHost: here\r\n\r\n");
  EXPECT_TRUE(client.send_until_closed(std::string(1 << 16, 'b'), 1000));
  EXPECT_EQ(http.counters().connections, 0u);
}

TEST(HttpEntry, TheTimeOfASilentConnection) {
  RunningHttp http({.patience = milliseconds(50)});
  RawTcpClient client(http.port());
  EXPECT_TRUE(client.is_closed());
}

TEST(HttpEntry, TheTimeOfARequestHoweverOftenAByteOfItComes) {
  RunningHttp http({.patience = milliseconds(200)});
  RawTcpClient client(http.port());
  client.send("GET /page HTTP/1.1\r\nX: ");
  ASSERT_TRUE(eventually([&] {
    client.send_until_closed("x", 1);
    return client.has_bytes();
  }));
  EXPECT_THAT(client.receive(13), "HTTP/1.1 408 ");
  client.close();
  EXPECT_TRUE(eventually([&] { return http.counters().connections == 0; }));
}

TEST(HttpEntry, TheTimeOfAnAnswerThatIsNotRead) {
  RunningHttp http({.patience = milliseconds(200)});
  RawTcpClient slow(http.port(), "127.0.0.1", 4096);
  std::string many;
  for (int i = 0; i < 20; ++i) many += kGetLarge;  // 20 MiB: more than the sockets take
  slow.send(many);
  EXPECT_TRUE(eventually([&] { return http.counters().answers[200] > 0; }));
  EXPECT_TRUE(eventually([&] { return http.counters().connections == 0; }));
  EXPECT_LT(http.counters().answers[200], 20u) << "one answer after the other";
}

TEST(HttpEntry, TheNumberOfConnectionsAndANewOneIsServedAllTheSame) {
  RunningHttp http({.connections = 4, .patience = std::chrono::hours(1)});
  std::vector<std::unique_ptr<RawTcpClient>> holding;
  for (int i = 0; i < 4; ++i) {
    holding.push_back(std::make_unique<RawTcpClient>(http.port()));
    holding.back()->send("GET /page HT");
  }
  ASSERT_TRUE(eventually([&] { return http.counters().connections == 4; }));
  RawTcpClient probe(http.port());
  probe.send(kGet);
  EXPECT_THAT(receive_one(probe), EndsWith("hello\n"));
  EXPECT_TRUE(holding.front()->is_closed()) << "it has been waited for longest";
  EXPECT_EQ(http.counters().connections, 4u);
  holding.back()->send("TP/1.1\r\nHost: here\r\n\r\n");
  EXPECT_THAT(receive_one(*holding.back()), EndsWith("hello\n"));
}

TEST(HttpEntry, AConnectionThatWaitsForItsPageIsTheLastToBeClosed) {
  RunningHttp http({.connections = 2, .patience = std::chrono::hours(1)});
  RawTcpClient waiting(http.port());
  waiting.send(kGetLater);
  ASSERT_TRUE(eventually([&] { return http.is_asked_for_later(); }));
  RawTcpClient idle(http.port());
  ASSERT_TRUE(eventually([&] { return http.counters().connections == 2; }));
  RawTcpClient probe(http.port());
  probe.send(kGet);
  EXPECT_THAT(receive_one(probe), EndsWith("hello\n"));
  EXPECT_TRUE(idle.is_closed());
  http.answer_later();
  EXPECT_THAT(receive_one(waiting), EndsWith("hello\n"));
}

TEST(HttpEntry, APageThatComesAfterItsConnectionWasClosedIsDropped) {
  RunningHttp http({.connections = 1, .patience = std::chrono::hours(1)});
  RawTcpClient waiting(http.port());
  waiting.send(kGetLater);
  ASSERT_TRUE(eventually([&] { return http.is_asked_for_later(); }));
  RawTcpClient probe(http.port());
  probe.send(kGet);
  EXPECT_THAT(receive_one(probe), EndsWith("hello\n"));
  EXPECT_TRUE(waiting.is_closed()) << "there is no other one";
  http.answer_later();
  EXPECT_EQ(http.counters().connections, 1u);
  EXPECT_EQ(http.counters().answers, (std::map<int, std::uint64_t>{{200, 1}}));
}

TEST(HttpEntry, AClientMayLeaveBeforeItsPageIsMade) {
  RunningHttp http;
  RawTcpClient client(http.port());
  client.send(kGetLater);
  ASSERT_TRUE(eventually([&] { return http.is_asked_for_later(); }));
  client.close();
  http.answer_later();
  EXPECT_TRUE(eventually([&] { return http.counters().connections == 0; }));
}

TEST(HttpEntry, GoesWithItsConnectionsAtOnce) {
  auto http = std::make_unique<RunningHttp>();
  RawTcpClient idle(http->port()), reading(http->port(), "127.0.0.1", 4096);
  idle.send(kGet);
  EXPECT_THAT(receive_one(idle), EndsWith("hello\n"));
  reading.send(kGetLarge);
  ASSERT_TRUE(eventually([&] { return http->counters().answers[200] == 2; }));
  http.reset();
  EXPECT_TRUE(idle.is_closed());
}

}  // namespace
}  // namespace ddprun
