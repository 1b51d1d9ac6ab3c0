// ControlSocket: the agent's end of the socket for `ddprun status`, `logs`, `stop`, `restart`,
// `signal` and `flight`. It accepts connections of this user and of root, reads one line from
// each, and passes the line to its handler. The handler answers (launcher/control/server.h).
//
// No client can delay the agent:
// - The socket never blocks.
// - A connection that sends no request within kAskTimeout is closed.
// - At most kMaxSilent connections that have sent no request are kept; a new one closes the
//   oldest.
// - At most kMaxConnections are kept in all.
// - The unsent data for a client that does not read has a bound.
//
// Owner: ControlServer, on the agent's thread. It causes no wakeups while no client is
// connected.
#pragma once

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "launcher/output/reader.h"

namespace ddprun {

// ControlSession: one connection. Shared by the socket and its handler. is_open() becomes false
// when the peer has gone or the connection was closed.
class ControlSession final : public OutputReader,
                             public std::enable_shared_from_this<ControlSession> {
 public:
  explicit ControlSession(boost::asio::local::stream_protocol::socket socket)
      : socket_(std::move(socket)), timer_(socket_.get_executor()) {}

  // Sends a line and adds its line end. Closes the connection if room() is too small for it.
  void say(std::string_view line) override;
  // Returns how many bytes may be sent now.
  std::size_t room() const override {
    return kMaxUnsentBytes - std::min(kMaxUnsentBytes, unsent_.size() + sending_.size());
  }
  // Closes the connection when all data is sent, or after kTakeTimeout.
  void end() override;
  void end_with_job(std::string_view last_word) override { answer(last_word); }
  // Sends the only line, or the last one.
  void answer(std::string_view line) {
    say(line);
    end();
  }
  void close();
  bool is_open() const override { return socket_.is_open(); }

 private:
  friend class ControlSocket;
  void flush();

  boost::asio::local::stream_protocol::socket socket_;
  boost::asio::steady_timer timer_;  // limits the time that the peer takes
  std::string received_;
  std::string unsent_;
  std::string sending_;
  bool has_asked_ = false;
  bool ends_ = false;
};
using ControlSessionPtr = std::shared_ptr<ControlSession>;

class ControlSocket : public std::enable_shared_from_this<ControlSocket> {
 public:
  static constexpr Duration kAskTimeout = std::chrono::seconds(5);
  static constexpr Duration kTakeTimeout = std::chrono::seconds(10);
  static constexpr std::size_t kMaxSilent = 32;
  static constexpr std::size_t kMaxConnections = 96;

  // Receives the request line without its line end. Called at most once for each connection.
  using Asked = std::function<void(const ControlSessionPtr&, std::string_view line)>;

  // listener: from listen_for_control(). REQUIRES: the io_context outlives the socket.
  ControlSocket(boost::asio::io_context& io, UniqueFd listener, Asked asked);
  // Begins to accept connections. Call once.
  void accept();
  // Closes all connections.
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

 private:
  void admit(const ControlSessionPtr& session);
  void read(const ControlSessionPtr& session);
  void take(const ControlSessionPtr& session);

  // In order of arrival. Closed ones are removed when the next connection arrives.
  std::vector<ControlSessionPtr> sessions_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  Asked asked_;
};

}  // namespace ddprun
