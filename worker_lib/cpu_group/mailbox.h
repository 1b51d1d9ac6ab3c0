// Mailbox: sends and receives messages between any two ranks of a group, blocking and
// non-blocking. transfers.h moves them; this is about who calls it when.
//
// Progress: A thread in a blocking call moves everything in flight. It spins first and then
// sleeps in poll(2). The first asynchronous transfer that does not end at once starts a thread,
// which moves transfers without a waiting call. One thread at a time moves bytes: the driver.
// With nothing in flight there is no driver.
//
// Callbacks may wait for other transfers. The thread that runs a callback drives again when the
// callback returns. If a callback runs for more than 1 to 2 ms, another thread of the mailbox
// drives meanwhile. The mailbox has at most one thread more than the number of callbacks that
// have run at the same time.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/cpu_group/group_core.h"
#include "worker_lib/cpu_group/transfers.h"

namespace ddprun {

class Mailbox {
 public:
  explicit Mailbox(GroupCore& core) : core_(core) {}
  // Ends the transfers in flight with kStopped. Other ranks learn of it when this rank leaves.
  ~Mailbox();

  // Waits until nothing is in flight, at most `patience`. Returns whether nothing is in flight.
  bool await_idle(Duration patience);

  // Blocks until the message is sent or received. Returns the partner.
  Result<Rank> carry_out(const MessageRequest& request);
  void start(const MessageRequest& request, TransferDone done);

 private:
  using Lock = std::unique_lock<std::mutex>;

  Lock enter();
  void leave(Lock& lock);
  void lock_in_turn(Lock& lock);
  void ensure_thread();
  void run();
  void watch_callbacks(Lock& lock);
  bool wait_for_work(Lock& lock, std::optional<Duration> patience);
  bool claim_thread();
  template <class Over>
  void drive(Lock& lock, Over over);
  void notify_driver();
  void sleep(Lock& lock);
  void look_at_sockets(TimePoint until, Lock* lock);
  void call_back(Lock& lock);

  GroupCore& core_;

  std::atomic<int> lock_waiters_ = 0;  // number of threads that want the mutex
  // Guards the members below; the driver uses polled_ without it while it sleeps.
  std::mutex mutex_;
  // Blocking calls wait for it: a driver stopped, or an answer came. Also await_idle().
  std::condition_variable changed_;
  std::condition_variable work_;  // the mailbox's threads wait for it: see run()
  Transfers transfers_{core_, changed_};
  std::vector<pollfd> polled_;
  bool driving_ = false;
  bool sleeping_ = false;  // the driver sleeps
  bool closing_ = false;
  std::vector<std::thread> threads_;
  int free_threads_ = 0;          // threads that run no callback
  bool is_watched_ = false;       // one of them is in watch_callbacks()
  int waiting_threads_ = 0;       // threads in wait_for_work()
  bool is_thread_woken_ = false;  // one of them has been notified

  // Callbacks are numbered as they begin. Those below first_active_call_ count as blocked.
  std::uint64_t next_call_ = 0;
  std::uint64_t first_active_call_ = 0;
  int active_calls_ = 0;
};

}  // namespace ddprun
