#include "worker_lib/cpu_group/mailbox.h"

#include <sched.h>

#include <exception>

#include "base/background_thread.h"
#include "base/poll_until.h"

namespace ddprun {
namespace {

// A sleeping driver looks again after this time at the latest.
constexpr Duration kLongestSleep = std::chrono::milliseconds(200);
// After this time a callback counts as blocked, and another thread drives.
constexpr Duration kCallbackPatience = std::chrono::milliseconds(1);

}  // namespace

// --- from outside ---

Mailbox::~Mailbox() {
  Lock lock = enter();
  transfers_.end_here();
  closing_ = true;
  notify_driver();
  work_.notify_all();
  call_back(lock);
  while (!threads_.empty()) {
    std::thread one = std::move(threads_.back());
    threads_.pop_back();
    lock.unlock();
    one.join();
    lock_in_turn(lock);
  }
}

bool Mailbox::await_idle(Duration patience) {
  Lock lock = enter();
  return changed_.wait_for(lock, patience, [&] { return transfers_.empty(); });
}

Result<Rank> Mailbox::carry_out(const MessageRequest& request) {
  Transfers::Transfer transfer{request};
  Transfers::Answer answer;
  transfer.answer = &answer;
  Lock lock = enter();
  if (const Result<void> posted = transfers_.post(transfer); !posted) return posted.error();
  while (!answer) {
    if (!driving_) {
      drive(lock, [&] { return answer.has_value(); });
      call_back(lock);
    } else {
      transfers_.step();  // bytes that can go now need no driver
      if (answer) break;
      notify_driver();
      changed_.wait(lock);
    }
  }
  leave(lock);
  return std::move(*answer);
}

void Mailbox::start(const MessageRequest& request, TransferDone done) {
  Transfers::Transfer transfer{request};
  transfer.done = std::move(done);
  Lock lock = enter();
  if (const Result<void> posted = transfers_.post(transfer); !posted) {
    lock.unlock();
    return transfer.done(posted.error());
  }
  transfers_.step();
  if (transfers_.has_async()) {
    ensure_thread();
    notify_driver();
  }
  leave(lock);
}

Mailbox::Lock Mailbox::enter() {
  Lock lock(mutex_, std::defer_lock);
  lock_in_turn(lock);
  return lock;
}

// Runs the callbacks that are due and unlocks the mutex. Leaves asynchronous transfers to a
// thread of the mailbox, unless another thread continues them.
void Mailbox::leave(Lock& lock) {
  call_back(lock);
  const bool is_taken = driving_ || (active_calls_ > 0 && is_watched_);
  const bool wakes = transfers_.has_async() && !is_taken && claim_thread();
  lock.unlock();
  if (wakes) work_.notify_one();
}

// Returns whether to notify a thread that waits for work. A second thread is not notified before
// the first one runs.
bool Mailbox::claim_thread() {
  if (waiting_threads_ == 0 || is_thread_woken_) return false;
  return is_thread_woken_ = true;
}

// Locks the mutex. A driver that spins unlocks the mutex when lock_waiters_ says that a thread
// waits here.
void Mailbox::lock_in_turn(Lock& lock) {
  lock_waiters_.fetch_add(1);
  lock.lock();
  lock_waiters_.fetch_sub(1);
}

// --- driving ---

// Starts a thread of the mailbox if all its threads run callbacks. Callbacks may wait for a
// transfer that only another thread can end.
void Mailbox::ensure_thread() {
  if (free_threads_ > 0) return;
  std::thread thread;
  if (const Result<void> started = start_thread(thread, "ddprun-mail", [this] { run(); }); !started)
    return transfers_.fail_all(started.error().kind, -1, started.error().message());
  threads_.push_back(std::move(thread));
  ++free_threads_;
}

// Drives and runs callbacks. A thread that runs a callback drives again when the callback
// returns, so the other threads only watch it. Waking one of them for each callback would cost
// more than most transfers.
void Mailbox::run() {
  Lock lock(mutex_);
  std::uint64_t seen = 0;  // the last value of next_call_ seen
  while (!closing_ || transfers_.has_ended()) {
    if (active_calls_ == 0 && transfers_.has_ended()) {
      --free_threads_;
      call_back(lock);
      ++free_threads_;
    } else if (active_calls_ == 0 && transfers_.has_async() && !driving_) {
      drive(lock, [this] { return closing_ || !transfers_.has_async(); });
    } else if (is_watched_ || (active_calls_ == 0 && seen == next_call_)) {
      wait_for_work(lock, std::nullopt);
    } else {
      seen = next_call_;
      watch_callbacks(lock);
    }
  }
  work_.notify_all();  // the other threads may have begun to wait after ~Mailbox notified them
}

// Waits for kCallbackPatience. If no callback has begun meanwhile, the callbacks that still run
// no longer count as active.
void Mailbox::watch_callbacks(Lock& lock) {
  const std::uint64_t begun = next_call_;
  is_watched_ = true;
  const bool is_notified = wait_for_work(lock, kCallbackPatience);
  is_watched_ = false;
  if (is_notified || begun != next_call_) return;
  first_active_call_ = next_call_;
  active_calls_ = 0;
}

// Waits until there is work, at most `patience`. Returns whether it was notified in time.
bool Mailbox::wait_for_work(Lock& lock, std::optional<Duration> patience) {
  ++waiting_threads_;
  std::cv_status status = std::cv_status::no_timeout;
  if (patience) {
    status = work_.wait_for(lock, *patience);
  } else {
    work_.wait(lock);
  }
  --waiting_threads_;
  is_thread_woken_ = false;
  return status == std::cv_status::no_timeout;
}

// Moves bytes until over() is true or callbacks are due. A callback may wait for other messages,
// which another thread moves meanwhile. REQUIRES: no thread drives.
template <class Over>
void Mailbox::drive(Lock& lock, Over over) {
  struct Turn {
    Mailbox& mailbox;
    ~Turn() {
      mailbox.driving_ = false;
      mailbox.changed_.notify_all();
    }
  };
  const Turn until_it_is_over{*this};
  driving_ = true;
  bool is_idle = false;
  TimePoint sleep_at{};
  while (!over() && !transfers_.has_ended()) {
    const bool moved = transfers_.step();
    transfers_.end_failed(moved);
    if (over() || transfers_.has_ended()) break;
    // Hand the mutex to a waiting thread: a thread that unlocks and locks at once would win it
    // again.
    if (lock_waiters_.load() > 0) {
      lock.unlock();
      while (lock_waiters_.load() > 0) sched_yield();
      lock.lock();
    }
    const TimePoint now = BootClock::now();
    if (moved || !is_idle) sleep_at = now + core_.parts().spin;
    is_idle = !moved;
    if (moved) continue;
    if (now < sleep_at) {
      look_at_sockets(now, nullptr);
    } else {
      sleep(lock);
      is_idle = false;
    }
  }
}

// Wakes a sleeping driver because there is new work. REQUIRES: the mutex is held.
void Mailbox::notify_driver() {
  if (sleeping_) core_.wakeups().notify_own();
}

void Mailbox::sleep(Lock& lock) {
  if (transfers_.begin_sleep()) {
    // The rank that owes the notification may have been stopped before it sent it.
    look_at_sockets(transfers_.first_deadline(BootClock::now() + kLongestSleep), &lock);
  }
  transfers_.end_sleep();
}

// Polls the wakeup fd and, with several nodes, the listener and the sockets. lock: unlocked
// while it waits; null: it does not wait.
void Mailbox::look_at_sockets(TimePoint until, Lock* lock) {
  if (!lock && core_.here().one_node()) return;
  polled_.assign(1, {core_.wakeups().own_fd(), POLLIN, 0});
  transfers_.add_polled(polled_);
  if (lock) {
    sleeping_ = true;
    lock->unlock();
  }
  poll_until(polled_, until);
  if (lock) {
    lock->lock();
    sleeping_ = false;
  }
  if (polled_[0].revents != 0) core_.wakeups().drain();
  transfers_.take_events(std::span(polled_).subspan(1));
}

// Calls the callbacks of ended transfers without the mutex, because they may start the next
// transfer. Takes one at a time, so that another thread can call the others while one waits. An
// exception ends the group, because the program may have missed a message. The other callbacks
// are still called.
void Mailbox::call_back(Lock& lock) {
  while (transfers_.has_ended()) {
    Transfers::Ended one = transfers_.take_ended();
    const bool may_wait = transfers_.has_ended() || transfers_.has_async();
    if (may_wait) ensure_thread();
    const bool wakes = may_wait && !is_watched_ && claim_thread();
    const std::uint64_t number = next_call_++;
    ++active_calls_;
    lock.unlock();
    if (wakes) work_.notify_one();
    try {
      one.done(one.result);
    } catch (const std::exception& thrown) {
      core_.raise(ErrorKind::kSystem, core_.here().rank,
                  std::string("the callback at the end of a message threw: ") + thrown.what());
    } catch (...) {
      core_.raise(
          ErrorKind::kSystem, core_.here().rank,
          "the callback at the end of a message threw something that is not a std::exception");
    }
    one.done = nullptr;
    lock_in_turn(lock);
    if (number >= first_active_call_) --active_calls_;
  }
}

}  // namespace ddprun
