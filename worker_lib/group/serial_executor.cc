#include "worker_lib/group/serial_executor.h"

#include "base/background_thread.h"

namespace ddprun {

SerialExecutor::~SerialExecutor() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<detail::HostWork> SerialExecutor::submit(Call call) {
  auto work = std::make_shared<detail::HostWork>();
  if (!thread_.joinable()) {
    const Result<void> started = start_thread(thread_, thread_name_, [this] { run(); });
    if (!started) {
      work->complete(started);
      return work;
    }
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.size() < kMaxWaiting; });
  unfinished_.fetch_add(1, std::memory_order_relaxed);
  waiting_.push_back({std::move(call), work});
  lock.unlock();
  changed_.notify_all();
  return work;
}

void SerialExecutor::await_idle(Duration patience) {
  if (is_idle()) return;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return is_idle(); });
}

void SerialExecutor::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !waiting_.empty() || closing_; });
    if (waiting_.empty()) return;
    Entry entry = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    changed_.notify_all();
    carry_out(std::move(entry));
    lock.lock();
    changed_.notify_all();
  }
}

void SerialExecutor::carry_out(Entry entry) {
  const Result<void> result = entry.call();
  entry.call = nullptr;  // releases the tensors before a waiting thread sees the end
  unfinished_.fetch_sub(1, std::memory_order_release);
  entry.work->complete(result);
}

}  // namespace ddprun
