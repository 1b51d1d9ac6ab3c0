#include "worker_lib/store/locked_store.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/deadline.h"

namespace ddprun {
namespace {

constexpr Duration kTurn = std::chrono::milliseconds(500);

class LockedStore final : public Store {
 public:
  explicit LockedStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(turn_);
    store_->set(key, value);
  }
  std::string get(const std::string& key, std::chrono::nanoseconds timeout) override {
    return in_turns(timeout, [&](Duration turn) { return store_->get(key, turn); });
  }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys,
                                     std::chrono::nanoseconds timeout) override {
    return in_turns(timeout, [&](Duration turn) { return store_->multi_get(keys, turn); });
  }
  bool check(const std::vector<std::string>& keys) override {
    const std::lock_guard lock(turn_);
    return store_->check(keys);
  }
  std::int64_t add(const std::string& key, std::int64_t delta) override {
    const std::lock_guard lock(turn_);
    return store_->add(key, delta);
  }
  bool delete_key(const std::string& key) override {
    const std::lock_guard lock(turn_);
    return store_->delete_key(key);
  }
  std::string local_address() const override {
    const std::lock_guard lock(turn_);
    return store_->local_address();
  }

 private:
  // Waits in short turns. A mutex is not fair, so other threads get time to lock it between two
  // turns.
  template <class Wait>
  std::invoke_result_t<Wait, Duration> in_turns(std::chrono::nanoseconds timeout, Wait wait) {
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

  const std::shared_ptr<Store> store_;
  mutable std::mutex turn_;
};

}  // namespace

std::shared_ptr<Store> locked_store(std::shared_ptr<Store> store) {
  return std::make_shared<LockedStore>(std::move(store));
}

}  // namespace ddprun
