// AsyncMunge: asks munge for an event loop, because calls of munge block. Tasks are done one
// after the other, on a thread of its own that starts with the first task. Outcomes are posted
// to the loop.
//
// The thread that runs the io_context owns it and calls it; handlers run there, too. A munged
// that hangs blocks the AsyncMunge's own thread, never the loop: every task has its outcome after
// kPatience. The AsyncMunge can be destroyed at any time. Its thread then ends once its call of
// munge returns.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/clock.h"
#include "rendezvous/auth/core/credential.h"
#include "rendezvous/auth/munge.h"

namespace ddprun {

class AsyncMunge {
 public:
  // Longer than libmunge needs to find out that munged is dead (2.3 s). Shorter than an agent's
  // attempt to connect (3 s).
  static constexpr Duration kPatience = std::chrono::milliseconds(2500);
  // Limit for waiting tasks. Further tasks fail at once.
  static constexpr std::size_t kMaxWaiting = 4096;

  using Handler = std::function<void(const MungeOutcome&)>;

  AsyncMunge(boost::asio::io_context& io, std::shared_ptr<const Munge> munge);
  // Drops pending handlers, which are never called.
  ~AsyncMunge();
  AsyncMunge(const AsyncMunge&) = delete;
  AsyncMunge& operator=(const AsyncMunge&) = delete;

  const Munge& munge() const { return *munge_; }

  // Asks munge, and calls `then` once, from the io_context and never within ask().
  void ask(MungeTask task, Handler then);

 private:
  struct Job;     // the thread's part of a task
  struct Shared;  // state shared with the thread
  struct Order {
    std::shared_ptr<Job> job;
    Handler then;
    boost::asio::steady_timer patience;
  };
  static void work(const std::shared_ptr<Shared>& shared);
  Result<void> hand_in(const std::shared_ptr<Job>& job);
  void post_outcome(std::uint64_t number, MungeOutcome outcome);
  void close(std::uint64_t number, const MungeOutcome& outcome);

  boost::asio::io_context& io_;
  std::shared_ptr<const Munge> munge_;
  std::shared_ptr<Shared> shared_;
  std::map<std::uint64_t, Order> open_;
  std::uint64_t last_number_ = 0;
  bool has_thread_ = false;
};

}  // namespace ddprun
