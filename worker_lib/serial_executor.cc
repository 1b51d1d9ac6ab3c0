#include "worker_lib/serial_executor.h"

#include <pthread.h>

#include <csignal>
#include <system_error>

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
    const Result<void> started = start_thread();
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

Result<void> SerialExecutor::start_thread() {
  // Signals belong to the program's own threads: ours is born with all of them blocked.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Result<void> started;
  try {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), thread_name_.c_str());
  } catch (const std::system_error& failed) {
    started = system_error("start the group's thread", failed.code().value());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
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
  }
}

void SerialExecutor::carry_out(Entry entry) {
  const Result<void> result = entry.call();
  entry.call = nullptr;  // lets go of the tensors before anybody learns of the end
  unfinished_.fetch_sub(1, std::memory_order_release);
  entry.work->complete(result);
}

}  // namespace ddprun
