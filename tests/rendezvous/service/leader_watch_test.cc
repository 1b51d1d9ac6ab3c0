#include "rendezvous/service/leader_watch.h"

#include <gtest/gtest.h>

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <optional>
#include <vector>

#include "tests/support/eventually.h"
#include "tests/support/held_port.h"

namespace ddprun {
namespace {

using boost::asio::ip::tcp;
using testing_support::eventually_on;

class LeaderWatchTest : public testing::Test {
 protected:
  void accept() {
    acceptor_->async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
      if (error) return;
      connections_.push_back(std::move(socket));
      accept();
    });
  }
  bool has_connections(std::size_t count) {
    return eventually_on(io_, [&] { return connections_.size() >= count; });
  }

  boost::asio::io_context io_;
  std::optional<tcp::acceptor> acceptor_{std::in_place, io_,
                                         tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)};
  std::vector<tcp::socket> connections_;
  bool is_gone_ = false;
  LeaderWatch watch_{
      io_, {"127.0.0.1", acceptor_->local_endpoint().port()}, [this] { is_gone_ = true; }};
};

TEST_F(LeaderWatchTest, ARefusalAfterABrokenConnectionMeansThatTheProcessIsGone) {
  accept();
  ASSERT_TRUE(has_connections(1));
  acceptor_.reset();
  connections_.clear();
  EXPECT_TRUE(eventually_on(io_, [&] { return is_gone_; }));
}

TEST_F(LeaderWatchTest, AServiceThatClosesTheConnectionIsNotGone) {
  accept();
  for (std::size_t count = 1; count <= 3; ++count) {
    ASSERT_TRUE(has_connections(count));
    connections_.back().close();
  }
  EXPECT_FALSE(is_gone_);
}

// The connection then breaks while the first request is being written.
TEST_F(LeaderWatchTest, AServiceThatClosesEachConnectionAtOnceIsNotForgotten) {
  std::size_t count = 0;
  std::function<void()> refuse = [&] {
    acceptor_->async_accept([&](const boost::system::error_code& error, tcp::socket socket) {
      if (error) return;
      ++count;
      socket.close();
      refuse();
    });
  };
  refuse();
  EXPECT_TRUE(eventually_on(io_, [&] { return count >= 8; }));
  EXPECT_FALSE(is_gone_);
}

// The address may be wrong.
TEST(LeaderWatch, ARefusalWithoutAnEarlierConnectionSaysNothing) {
  boost::asio::io_context io;
  const testing_support::HeldPort port;
  bool is_gone = false;
  const LeaderWatch watch(io, {"127.0.0.1", port.port()}, [&] { is_gone = true; });
  io.run_for(LeaderWatch::kRetryPause / 2);  // the first connection is refused meanwhile
  tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), port.port()});
  bool is_connected = false;
  acceptor.async_accept(
      [&](const boost::system::error_code& error, const tcp::socket&) { is_connected = !error; });
  EXPECT_TRUE(eventually_on(io, [&] { return is_connected; }));
  EXPECT_FALSE(is_gone);
}

}  // namespace
}  // namespace ddprun
