// Tests Transport and SendQueue on a pair of sockets, mostly without TLS. server_tls_test and
// tls_test have more with TLS.
#include "rendezvous/transport/send_queue.h"

#include <gtest/gtest.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "tests/support/certificates.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using boost::asio::ip::tcp;

class TransportTest : public testing::Test {
 protected:
  TransportTest() { connect(); }
  ~TransportTest() override { transport_->close(); }

  // Makes a new pair of sockets.
  void connect() {
    tcp::acceptor acceptor(io_, {boost::asio::ip::address_v4::loopback(), 0});
    tcp::socket ours(io_);
    ours.connect(acceptor.local_endpoint());
    peer_ = acceptor.accept();
    transport_ = std::make_shared<Transport>(std::move(ours));
  }
  void read() {
    transport_->read([this](const Result<std::string_view>& plain) {
      if (plain) {
        received_ = std::string(*plain);
      } else {
        failure_ = plain.error().kind;
      }
    });
  }
  // Runs handlers until one of read() has run. Returns whether it did.
  bool has_read() {
    received_.reset();
    failure_.reset();
    while (!received_ && !failure_) {
      io_.restart();
      if (io_.run_one_for(std::chrono::seconds(10)) == 0) return false;
    }
    return true;
  }

  boost::asio::io_context io_;
  tcp::socket peer_{io_};
  std::shared_ptr<Transport> transport_;
  std::optional<std::string> received_;
  std::optional<ErrorKind> failure_;
};

TEST_F(TransportTest, CallsAHandlerOnlyAfterTheCallThatBegan) {
  boost::asio::write(peer_, boost::asio::buffer(std::string("abc")));
  read();
  EXPECT_FALSE(received_) << "it runs from the io_context";
  ASSERT_TRUE(has_read());
  EXPECT_EQ(received_, "abc");

  bool written = false;
  const std::string answer = "answer";
  transport_->write({boost::asio::buffer(answer)},
                    [&](const Result<void>& done) { written = bool(done); });
  EXPECT_FALSE(written);
  io_.restart();
  while (!written && io_.run_one_for(std::chrono::seconds(10)) > 0) {
  }
  EXPECT_TRUE(written);
  std::string seen(answer.size(), '\0');
  boost::asio::read(peer_, boost::asio::buffer(seen));
  EXPECT_EQ(seen, answer);
}

TEST_F(TransportTest, AWaitingReadHasTakenNoBytesWhenTheSocketIsReleased) {
  read();
  boost::asio::write(peer_, boost::asio::buffer(std::string("abc")));
  tcp::socket socket = transport_->release();
  std::string seen(3, '\0');
  boost::asio::read(socket, boost::asio::buffer(seen));
  EXPECT_EQ(seen, "abc");
  EXPECT_FALSE(received_);
}

TEST_F(TransportTest, AReadTakesAllThatHasCome) {
  const std::string text(Transport::kReadBytes, 'x');
  boost::asio::write(peer_, boost::asio::buffer(text));
  boost::system::error_code error;
  while (transport_->socket().available(error) < text.size() && !error) {
  }
  ASSERT_FALSE(error) << error.message();
  read();
  ASSERT_TRUE(has_read());
  EXPECT_EQ(received_, text);
  boost::asio::write(peer_, boost::asio::buffer(std::string("abc")));
  read();
  ASSERT_TRUE(has_read());
  EXPECT_EQ(received_, "abc");
}

// A service has thousands of them.
TEST_F(TransportTest, AnIdleConnectionHasNoBuffer) { EXPECT_LT(sizeof(Transport), 1024u); }

TEST_F(TransportTest, TheEndOfThePeerIsALostConnection) {
  read();
  peer_.close();
  ASSERT_TRUE(has_read());
  EXPECT_EQ(failure_, ErrorKind::kConnection);
}

TEST_F(TransportTest, DestroysPendingHandlersWithoutACallWhenItIsClosed) {
  const auto captured = std::make_shared<int>(0);
  bool is_called = false;
  transport_->read([captured, &is_called](const Result<std::string_view>&) { is_called = true; });
  EXPECT_EQ(captured.use_count(), 2);
  transport_->close();
  io_.restart();
  io_.run_for(std::chrono::seconds(10));
  EXPECT_TRUE(io_.stopped()) << "nothing is left to do";
  EXPECT_EQ(captured.use_count(), 1);
  EXPECT_FALSE(is_called);
}

TEST_F(TransportTest, AQueueSendsMoreThanTheSocketTakesAndCountsIt) {
  const auto queue = std::make_shared<SendQueue>(transport_);
  std::size_t sent = 0;
  queue->on_sent = [&](const Result<std::size_t>& bytes) { sent += bytes ? *bytes : 0; };
  queue->add("abc");
  queue->flush();
  EXPECT_EQ(sent, 3u) << "it is sent at once";
  const std::string text(16 << 20, 'x');
  queue->add(text);
  queue->flush();
  queue->add("z");
  queue->flush();
  EXPECT_FALSE(queue->has_sent_all());
  std::string received(3 + text.size() + 1, '?');
  bool is_over = false;
  boost::asio::async_read(peer_, boost::asio::buffer(received),
                          [&](boost::system::error_code, std::size_t) { is_over = true; });
  while (!is_over && io_.run_one_for(std::chrono::seconds(10)) > 0) continue;
  EXPECT_EQ(received, "abc" + text + "z");
  EXPECT_TRUE(queue->has_sent_all());
  EXPECT_EQ(sent, received.size());
}

TEST_F(TransportTest, AQueueReportsThatThePeerHasGone) {
  const auto queue = std::make_shared<SendQueue>(transport_);
  bool has_failed = false;
  queue->on_sent = [&](const Result<std::size_t>& bytes) { has_failed = has_failed || !bytes; };
  peer_.set_option(boost::asio::socket_base::linger(true, 0));
  peer_.close();
  queue->add(std::string(16 << 20, 'x'));
  queue->flush();
  while (!has_failed && io_.run_one_for(std::chrono::seconds(10)) > 0) continue;
  EXPECT_TRUE(has_failed);
}

// With TLS the handler of a complete write is posted. The owner may close the transport before it
// runs. So this closes it after each number of handlers.
TEST_F(TransportTest, AQueueCallsNothingAfterItsTransportInTlsIsClosed) {
  const testing_support::TemporaryDirectory directory;
  const testing_support::Authority authority(directory.path(), "ours");
  const testing_support::IssuedFiles files = authority.issue("service");
  const TlsContextPtr service =
      TlsContext::for_service({.cert = files.cert, .key = files.key, .ca = ""})->context;
  const TlsContextPtr agent =
      TlsContext::for_agent({.cert = "", .key = "", .ca = authority.ca_file()})->context;
  int calls = 0;
  for (int handlers = 0; handlers < 6; ++handlers) {
    connect();
    const auto peer = std::make_shared<Transport>(std::move(peer_));
    int opened = 0;
    const auto count = [&](const Result<void>& result) { opened += result ? 1 : 0; };
    transport_->start_tls(TlsChannel::agent(agent, "localhost"));
    peer->start_tls(TlsChannel::service(service));
    transport_->open(count);
    peer->open(count);
    io_.restart();
    io_.run_for(std::chrono::seconds(10));
    ASSERT_EQ(opened, 2);

    calls = 0;
    const auto queue = std::make_shared<SendQueue>(transport_);
    queue->on_sent = [&](const Result<std::size_t>&) { ++calls; };
    queue->add("abc");
    queue->flush();
    queue->add("more");
    io_.restart();
    for (int i = 0; i < handlers; ++i) io_.poll_one();
    const int calls_before = calls;
    transport_->close();
    io_.restart();
    io_.run();
    EXPECT_EQ(calls, calls_before) << "closed after " << handlers << " handlers";
    peer->close();
  }
  EXPECT_GT(calls, 0) << "the last one was closed after all handlers";
}

}  // namespace
}  // namespace ddprun
