#include "rendezvous/auth/async_munge.h"

#include <atomic>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/background_thread.h"

namespace ddprun {

namespace asio = boost::asio;

struct AsyncMunge::Job {
  // For clang before 16, which does not initialize aggregates in parentheses.
  Job(std::uint64_t its_number, MungeTask its_task)
      : number(its_number), task(std::move(its_task)) {}

  std::uint64_t number;
  MungeTask task;
  std::atomic<bool> is_over = false;  // its outcome is not needed any more
};

// The thread may outlive the AsyncMunge and the io_context.
struct AsyncMunge::Shared {
  std::mutex mutex;
  std::condition_variable more;
  AsyncMunge* owner = nullptr;  // null: closed. Written by the loop's thread only
  std::shared_ptr<const Munge> munge;
  std::deque<std::shared_ptr<Job>> waiting;
};

AsyncMunge::AsyncMunge(asio::io_context& io, std::shared_ptr<const Munge> munge)
    : io_(io), munge_(std::move(munge)), shared_(std::make_shared<Shared>()) {
  shared_->owner = this;
  shared_->munge = munge_;
}

AsyncMunge::~AsyncMunge() {
  const std::lock_guard lock(shared_->mutex);
  shared_->owner = nullptr;
  shared_->waiting.clear();
  shared_->more.notify_all();
}

void AsyncMunge::ask(MungeTask task, Handler then) {
  const std::uint64_t number = ++last_number_;
  const auto job = std::make_shared<Job>(number, std::move(task));
  const auto order =
      open_.emplace(number, Order{job, std::move(then), asio::steady_timer(io_, kPatience)}).first;
  if (const Result<void> taken = hand_in(job); !taken) return post_outcome(number, taken.error());
  order->second.patience.async_wait(
      [shared = shared_, number](const boost::system::error_code& error) {
        if (error || !shared->owner) return;
        shared->owner->close(
            number, timeout_error("ask munge", "munged does not answer", kPatience, kPatience));
      });
}

Result<void> AsyncMunge::hand_in(const std::shared_ptr<Job>& job) {
  if (!has_thread_) {
    const Result<void> started =
        start_detached_thread("munge", [shared = shared_] { work(shared); });
    if (!started) return started.error();
    has_thread_ = true;
  }
  const std::lock_guard lock(shared_->mutex);
  if (shared_->waiting.size() >= kMaxWaiting) {
    return Error{.kind = ErrorKind::kResource,
                 .doing = "ask munge",
                 .cause = std::to_string(kMaxWaiting) + " other requests wait for it"};
  }
  shared_->waiting.push_back(job);
  shared_->more.notify_one();
  return {};
}

void AsyncMunge::work(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  while (true) {
    shared->more.wait(lock, [&] { return !shared->owner || !shared->waiting.empty(); });
    if (!shared->owner) return;
    const std::shared_ptr<Job> job = std::move(shared->waiting.front());
    shared->waiting.pop_front();
    if (job->is_over) continue;
    lock.unlock();
    MungeOutcome outcome = shared->munge->carry_out(job->task);
    lock.lock();
    if (!shared->owner) return;
    shared->owner->post_outcome(job->number, std::move(outcome));
  }
}

// Called on either thread.
void AsyncMunge::post_outcome(std::uint64_t number, MungeOutcome outcome) {
  asio::post(io_, [shared = shared_, number, outcome = std::move(outcome)] {
    if (shared->owner) shared->owner->close(number, outcome);
  });
}

void AsyncMunge::close(std::uint64_t number, const MungeOutcome& outcome) {
  const auto found = open_.find(number);
  if (found == open_.end()) return;  // it has timed out
  found->second.job->is_over = true;
  const Handler then = std::move(found->second.then);
  open_.erase(found);
  then(outcome);  // may destroy this AsyncMunge
}

}  // namespace ddprun
