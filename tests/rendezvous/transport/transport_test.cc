// Tests Transport without TLS on a pair of sockets. server_tls_test and tls_test have it with TLS.
#include "rendezvous/transport/transport.h"

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

namespace ddprun {
namespace {

using boost::asio::ip::tcp;

class TransportTest : public testing::Test {
 protected:
  TransportTest() {
    tcp::acceptor acceptor(io_, {boost::asio::ip::address_v4::loopback(), 0});
    tcp::socket ours(io_);
    ours.connect(acceptor.local_endpoint());
    peer_ = acceptor.accept();
    transport_ = std::make_shared<Transport>(std::move(ours));
  }
  ~TransportTest() override { transport_->close(); }

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

}  // namespace
}  // namespace ddprun
