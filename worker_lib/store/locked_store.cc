#include "worker_lib/store/locked_store.h"

#include <algorithm>
#include <thread>

#include "base/deadline.h"

namespace ddprun {
namespace {

constexpr Duration kTurn = std::chrono::milliseconds(500);

}  // namespace

void LockedStore::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(turn_);
  store_->set(key, value);
}

// Waits in short turns. A mutex is not fair, so other threads get time to lock it between two
// turns.
template <class Wait>
auto LockedStore::in_turns(std::chrono::nanoseconds timeout, Wait wait) {
  const Deadline deadline(timeout);
  for (;;) {
    const Duration left = deadline.remaining();
    try {
      const std::lock_guard lock(turn_);
      return wait(std::min(left, kTurn));
    } catch (const DistError& error) {
      if (error.kind() != DistError::Kind::kTimeout || left <= kTurn) throw;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

std::string LockedStore::get(const std::string& key, std::chrono::nanoseconds timeout) {
  return in_turns(timeout, [&](Duration turn) { return store_->get(key, turn); });
}

std::vector<std::string> LockedStore::multi_get(const std::vector<std::string>& keys,
                                                std::chrono::nanoseconds timeout) {
  return in_turns(timeout, [&](Duration turn) { return store_->multi_get(keys, turn); });
}

bool LockedStore::check(const std::vector<std::string>& keys) {
  const std::lock_guard lock(turn_);
  return store_->check(keys);
}

std::int64_t LockedStore::add(const std::string& key, std::int64_t delta) {
  const std::lock_guard lock(turn_);
  return store_->add(key, delta);
}

bool LockedStore::delete_key(const std::string& key) {
  const std::lock_guard lock(turn_);
  return store_->delete_key(key);
}

std::string LockedStore::local_address() const {
  const std::lock_guard lock(turn_);
  return store_->local_address();
}

}  // namespace ddprun
