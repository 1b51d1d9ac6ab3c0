#include "worker_lib/store/turns.h"

#include <algorithm>
#include <thread>

#include "base/deadline.h"

namespace ddprun {
namespace {

constexpr Duration kTurn = std::chrono::milliseconds(500);

}  // namespace

void StoreTurns::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(turn_);
  store_->set(key, value);
}

// A mutex is not fair: between two turns others get the time to take theirs.
template <class Wait>
auto StoreTurns::in_turns(std::chrono::nanoseconds timeout, Wait wait) {
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

std::string StoreTurns::get(const std::string& key, std::chrono::nanoseconds timeout) {
  return in_turns(timeout, [&](Duration turn) { return store_->get(key, turn); });
}

std::vector<std::string> StoreTurns::multi_get(const std::vector<std::string>& keys,
                                               std::chrono::nanoseconds timeout) {
  return in_turns(timeout, [&](Duration turn) { return store_->multi_get(keys, turn); });
}

bool StoreTurns::check(const std::vector<std::string>& keys) {
  const std::lock_guard lock(turn_);
  return store_->check(keys);
}

std::int64_t StoreTurns::add(const std::string& key, std::int64_t delta) {
  const std::lock_guard lock(turn_);
  return store_->add(key, delta);
}

bool StoreTurns::delete_key(const std::string& key) {
  const std::lock_guard lock(turn_);
  return store_->delete_key(key);
}

std::string StoreTurns::local_address() const {
  const std::lock_guard lock(turn_);
  return store_->local_address();
}

}  // namespace ddprun
