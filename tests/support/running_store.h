// RunningStore: a StoreServer on loopback with its own thread, for tests in the same process.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "rendezvous/listen.h"
#include "rendezvous/store_server.h"

namespace ddprun::testing_support {

class RunningStore {
 public:
  enum class Start { kNow, kLater };

  explicit RunningStore(const StoreServerOptions& options = {}, Start start = Start::kNow,
                        const std::string& host = "127.0.0.1") {
    Result<Listener> listener = listen_tcp({.host = host, .port = 0});
    port_ = listener->address.port;
    std::vector<UniqueFd> sockets;
    sockets.push_back(std::move(listener->socket));
    server_.emplace(io_, log_, std::move(sockets), options);
    if (start == Start::kNow) server_->start();
    thread_ = std::thread([this] { io_.run(); });
  }

  ~RunningStore() {
    on_thread([this] { server_.reset(); });
    work_.reset();
    thread_.join();
  }

  std::uint16_t port() const { return port_; }

  void start() {
    on_thread([this] { server_->start(); });
  }
  void stop() {
    on_thread([this] { server_->stop(); });
  }
  StoreCounters counters() {
    StoreCounters counters;
    on_thread([&] { counters = server_->counters(); });
    return counters;
  }

  // Runs on the server's thread, and waits for it.
  void on_thread(const std::function<void()>& action) {
    std::promise<void> done;
    boost::asio::post(io_, [&] {
      action();
      done.set_value();
    });
    done.get_future().wait();
  }
  boost::asio::io_context& io() { return io_; }
  StoreServer& server() { return *server_; }

  // What was logged so far.
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
  std::optional<StoreServer> server_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

// Looks until it is so, for at most ten seconds.
inline bool eventually(const std::function<bool()>& condition) {
  const TimePoint end = BootClock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (BootClock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace ddprun::testing_support
