// ControlSocket: the agent's end of the socket for `ddprun status`, `logs`, `stop`, `restart` and
// `signal`. It takes connections of this user and of root, reads one line from each, and hands it
// on; what is to be answered is the handler's (launcher/control/server.h).
//
// Nobody can hold the agent up: it never blocks, a connection that has not asked within kAskTimeout
// is closed, of those that have not asked at most kMaxSilent are kept (the oldest gives way), in all
// at most kMaxConnections; and what waits for one that does not read has a bound.
//
// Owner: ControlServer, on the agent's thread. While nobody is connected it does not wake.
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

// One connection. Shared; is_open() is false once the other side has gone or it was closed.
class ControlSession final : public OutputReader,
                             public std::enable_shared_from_this<ControlSession> {
 public:
  explicit ControlSession(boost::asio::local::stream_protocol::socket socket)
      : socket_(std::move(socket)), timer_(socket_.get_executor()) {}

  // Sends a line, whose end is added. A connection that has no room for it is closed.
  void say(std::string_view line) override;
  // How many bytes may be said now.
  std::size_t room() const override {
    return kMaxUnsentBytes - std::min(kMaxUnsentBytes, unsent_.size() + sending_.size());
  }
  // Closes when all is sent, or has not been taken in time.
  void end() override;
  void end_with_job(std::string_view last_word) override {
    say(last_word);
    end();
  }
  void close();
  bool is_open() const override { return socket_.is_open(); }

 private:
  friend class ControlSocket;
  void flush();

  boost::asio::local::stream_protocol::socket socket_;
  boost::asio::steady_timer timer_;  // of what the other side has to do
  std::string received_;
  std::string unsent_;
  std::string sending_;
  bool has_asked_ = false;
  bool ends_ = false;
};
using ControlSessionPtr = std::shared_ptr<ControlSession>;

class ControlSocket {
 public:
  static constexpr Duration kAskTimeout = std::chrono::seconds(5);
  static constexpr Duration kTakeTimeout = std::chrono::seconds(10);
  static constexpr std::size_t kMaxSilent = 32;
  static constexpr std::size_t kMaxConnections = 96;

  // line: without its end. Called once for each connection.
  using Asked = std::function<void(const ControlSessionPtr&, std::string_view line)>;

  // listener: of listen_for_control(). REQUIRES: the io_context outlives it.
  ControlSocket(boost::asio::io_context& io, UniqueFd listener, Asked asked);
  // Closes every connection.
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

 private:
  struct State;
  static void accept(const std::shared_ptr<State>& state);
  static void admit(const std::shared_ptr<State>& state, const ControlSessionPtr& session);
  static void read(const std::shared_ptr<State>& state, const ControlSessionPtr& session);
  static void take(const std::shared_ptr<State>& state, const ControlSessionPtr& session);

  std::shared_ptr<State> state_;
};

}  // namespace ddprun
