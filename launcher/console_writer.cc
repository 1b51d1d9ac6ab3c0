#include "launcher/console_writer.h"

#include <sys/select.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

namespace ddprun {
namespace {

// Writes all of it; false when the reader is gone.
bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return false;
      // Somebody who shares this terminal or pipe made it non-blocking.
      fd_set writable;
      FD_ZERO(&writable);
      FD_SET(fd, &writable);
      ::select(fd + 1, nullptr, &writable, nullptr, nullptr);
      continue;
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

ConsoleWriter::ConsoleWriter(std::function<void()> on_drained)
    : on_drained_(std::move(on_drained)) {
  // The thread takes no signals: they are the main thread's to handle.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ConsoleWriter::~ConsoleWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void ConsoleWriter::write(ConsoleStream stream, std::string_view lines) {
  {
    const std::lock_guard lock(mutex_);
    if (dropping_) return;
    queued_[static_cast<std::size_t>(stream)].append(lines);
    if (queued_[0].size() + queued_[1].size() >= kHighWater) was_full_ = true;
  }
  wake_.notify_one();
}

bool ConsoleWriter::is_full() const {
  const std::lock_guard lock(mutex_);
  return was_full_;
}

bool ConsoleWriter::flush(Duration allowed) {
  std::unique_lock lock(mutex_);
  return drained_.wait_for(
      lock, allowed, [this] { return !writing_ && queued_[0].empty() && queued_[1].empty(); });
}

void ConsoleWriter::give_up() {
  const std::lock_guard lock(mutex_);
  dropping_ = true;
  for (std::string& queue : queued_) queue.clear();
}

void ConsoleWriter::run() {
  std::array<bool, 2> reader_gone{};
  std::array<std::string, 2> batch;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !queued_[0].empty() || !queued_[1].empty(); });
    if (queued_[0].empty() && queued_[1].empty()) return;
    batch[0].clear();
    batch[1].clear();
    batch.swap(queued_);
    const bool drained_from_full = std::exchange(was_full_, false);
    writing_ = true;
    lock.unlock();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (!reader_gone[i])
        reader_gone[i] = !write_all(i == 0 ? STDOUT_FILENO : STDERR_FILENO, batch[i]);
    }
    if (drained_from_full) on_drained_();
    lock.lock();
    writing_ = false;
    if (queued_[0].empty() && queued_[1].empty()) drained_.notify_all();
  }
}

}  // namespace ddprun
