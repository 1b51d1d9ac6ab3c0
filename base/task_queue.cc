#include "base/task_queue.h"

#include "base/background_thread.h"

namespace ddprun {

TaskQueue::~TaskQueue() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<void> TaskQueue::start() {
  if (thread_.joinable()) return {};
  return start_thread(thread_, name_, [this] { run(); });
}

void TaskQueue::post(std::function<void()> task) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_.size() < most_waiting_; });
    waiting_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void TaskQueue::await_idle(Duration patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return waiting_.empty() && !is_busy_; });
}

void TaskQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !waiting_.empty() || closing_; });
    if (waiting_.empty()) return;
    std::function<void()> task = std::move(waiting_.front());
    waiting_.pop_front();
    is_busy_ = true;
    lock.unlock();
    changed_.notify_all();
    task();
    task = nullptr;
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace ddprun
