// MungeDesk: what an event loop asks of munge, which blocks. Tasks are done one after the other, on
// a thread of the desk's own that is started with the first; outcomes come back to the loop.
//
// Owned and called by the thread that runs the io_context, like the handlers it is given. A munged
// that hangs holds up the thread, never the loop: every task has its outcome after kPatience, and
// the desk can be destroyed at any time, the thread then ends when munge lets go of it.
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

class MungeDesk {
 public:
  // Longer than libmunge takes to find out that munged is dead (2.3 s), shorter than an agent's try
  // to connect (3 s).
  static constexpr Duration kPatience = std::chrono::milliseconds(2500);
  // More tasks than that wait for nothing: the outcome is an error at once.
  static constexpr std::size_t kMaxWaiting = 4096;

  using Handler = std::function<void(const MungeOutcome&)>;

  MungeDesk(boost::asio::io_context& io, std::shared_ptr<const Munge> munge);
  // Handlers that were not called by then never are.
  ~MungeDesk();
  MungeDesk(const MungeDesk&) = delete;
  MungeDesk& operator=(const MungeDesk&) = delete;

  const Munge& munge() const { return *munge_; }

  // Calls `then` once, from the io_context, never from within ask().
  void ask(MungeTask task, Handler then);

 private:
  struct Job;     // what the thread has of a task
  struct Shared;  // with the thread
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
