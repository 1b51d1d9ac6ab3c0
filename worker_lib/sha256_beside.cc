#include "worker_lib/sha256_beside.h"

#include "base/background_thread.h"

namespace ddprun {

Sha256Beside::~Sha256Beside() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Sha256Beside::begin(const void* data, std::size_t bytes) {
  if (!thread_.joinable() && !start_thread(thread_, "ddprun-digest", [this] { run(); }))
    return digest_.add(data, bytes);
  {
    const std::lock_guard lock(mutex_);
    piece_ = {static_cast<const char*>(data), bytes};
  }
  changed_.notify_all();
}

void Sha256Beside::join() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return piece_.empty(); });
}

void Sha256Beside::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || !piece_.empty(); });
    if (piece_.empty()) return;
    const std::string_view piece = piece_;
    lock.unlock();
    digest_.add(piece.data(), piece.size());
    lock.lock();
    piece_ = {};
    changed_.notify_all();
  }
}

}  // namespace ddprun
