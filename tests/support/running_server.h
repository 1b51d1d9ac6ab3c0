// RunningServer: a server on loopback with its own thread, for tests in the same process. See
// RunningStore (tests/support/running_store.h) and RunningService
// (tests/support/running_service.h).
#pragma once

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/host_port.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "rendezvous/net/listen.h"

namespace ddprun::testing_support {

template <class Server>
class RunningServer {
 public:
  enum class Start { kNow, kLater };

  // make: returns a shared_ptr of the server; gets the io_context, the log and the socket.
  template <class Make>
  RunningServer(const HostPort& where, Start start, Make make) {
    Result<Listener> listener = listen_tcp(where);
    if (!listener) throw std::runtime_error(listener.error().message());
    port_ = listener->address.port;
    server_ = make(io_, log_, std::move(listener->socket));
    if (start == Start::kNow) server_->start();
    thread_ = std::thread([this] { io_.run(); });
  }

  ~RunningServer() {
    on_thread([this] { server_.reset(); });
    work_.reset();
    thread_.join();
  }

  std::uint16_t port() const { return port_; }

  void start() {
    on_thread([this] { server_->start(); });
  }

  // Runs the action on the server's thread and waits until it has ended.
  void on_thread(const std::function<void()>& action) {
    std::promise<void> done;
    boost::asio::post(io_, [&] {
      action();
      done.set_value();
    });
    done.get_future().wait();
  }
  boost::asio::io_context& io() { return io_; }
  Server& server() { return *server_; }

  // Returns whether a line with this text was logged so far.
  bool has_logged(std::string_view text) {
    const std::lock_guard lock(mutex_);
    return std::any_of(lines_.begin(), lines_.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    });
  }
  // Returns the lines that were logged so far.
  std::vector<std::string> log_lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
  Logger log_{"test", [this](std::string_view line) {
                const std::lock_guard lock(mutex_);
                lines_.emplace_back(line);
              }};
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  std::shared_ptr<Server> server_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace ddprun::testing_support
