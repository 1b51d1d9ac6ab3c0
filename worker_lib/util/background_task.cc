#include "worker_lib/util/background_task.h"

#include "base/background_thread.h"

namespace ddprun {

BackgroundTask::~BackgroundTask() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundTask::begin(std::function<void()> task) {
  if (!thread_.joinable() && !start_thread(thread_, name_, [this] { run(); })) return task();
  {
    const std::lock_guard lock(mutex_);
    task_ = std::move(task);
  }
  changed_.notify_all();
}

void BackgroundTask::join() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !task_; });
}

void BackgroundTask::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || task_; });
    if (!task_) return;
    lock.unlock();
    task_();
    lock.lock();
    task_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace ddprun
