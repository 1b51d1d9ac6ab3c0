#include "rendezvous/service/leader_watch.h"

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <string>
#include <utility>

namespace ddprun {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

class LeaderWatch::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, HostPort leader, std::function<void()> gone)
      : leader_(std::move(leader)),
        request_("GET /healthz HTTP/1.1\r\nHost: " + to_text(leader_) + "\r\n\r\n"),
        gone_(std::move(gone)),
        resolver_(io),
        socket_(io),
        timer_(io) {}

  void look_up() {
    resolver_.async_resolve(
        leader_.host, std::to_string(leader_.port),
        [self = shared_from_this()](error_code error, const tcp::resolver::results_type& found) {
          if (self->is_over_) return;
          if (error) return self->after(kRetryPause, [self] { self->look_up(); });
          self->addresses_ = found;
          self->connect();
        });
  }

  void end() {
    is_over_ = true;
    gone_ = nullptr;
    resolver_.cancel();
    timer_.cancel();
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  // Every handler of the object holds it, and ends when is_over_ is set.
  template <class Then>
  void after(Duration pause, Then then) {
    timer_.expires_after(pause);
    timer_.async_wait([self = shared_from_this(), then = std::move(then)](error_code error) {
      if (!error && !self->is_over_) then();
    });
  }

  void connect() {
    asio::async_connect(socket_, addresses_,
                        [self = shared_from_this()](error_code error, const tcp::endpoint&) {
                          if (!self->is_over_) self->connected(error);
                        });
  }

  void connected(error_code error) {
    if (!error) {
      was_connected_ = true;
      read();
      return ask();
    }
    // Without an earlier connection, the address may be wrong.
    if (error == asio::error::connection_refused && was_connected_) {
      const auto gone = std::exchange(gone_, nullptr);
      end();
      return gone();
    }
    after(kRetryPause, [this] { look_up(); });
  }

  void ask() {
    asio::async_write(socket_, asio::buffer(request_),
                      [self = shared_from_this()](error_code error, std::size_t) {
                        if (error || self->is_over_) return;   // read() sees it, too
                        if (!self->socket_.is_open()) return;  // the timer is broken()'s now
                        self->after(kAskPause, [self] {
                          self->pause_ = {};
                          self->ask();
                        });
                      });
  }

  void read() {
    socket_.async_read_some(asio::buffer(ignored_),
                            [self = shared_from_this()](error_code error, std::size_t) {
                              if (self->is_over_) return;
                              if (!error) return self->read();
                              self->broken();
                            });
  }

  // Connects again: at once if the connection has held for a while.
  void broken() {
    error_code ignored;
    socket_.close(ignored);
    const Duration pause = pause_;
    pause_ = std::clamp<Duration>(2 * pause_, kShortestPause, kRetryPause);
    after(pause, [this] { connect(); });
  }

  static constexpr Duration kShortestPause = std::chrono::milliseconds(10);

  HostPort leader_;
  std::string request_;
  std::function<void()> gone_;
  tcp::resolver resolver_;
  tcp::resolver::results_type addresses_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  std::array<char, 1024> ignored_{};
  Duration pause_{};  // before the next connection
  bool was_connected_ = false;
  bool is_over_ = false;
};

LeaderWatch::LeaderWatch(asio::io_context& io, const HostPort& leader, std::function<void()> gone)
    : impl_(std::make_shared<Impl>(io, leader, std::move(gone))) {
  impl_->look_up();
}

LeaderWatch::~LeaderWatch() { impl_->end(); }

}  // namespace ddprun
