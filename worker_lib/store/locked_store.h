// LockedStore: lets several threads share a Store that only one thread at a time may use. Groups
// that bootstrap through it are formed by one thread, and their first calls are made by others.
//
// No thread holds the lock during a long wait: a wait consists of short ones. Shares ownership
// of the underlying store. Any thread; errors are those of that store.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ddprun/store.h"

namespace ddprun {

class LockedStore final : public Store {
 public:
  explicit LockedStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::nanoseconds timeout) override;
  std::vector<std::string> multi_get(const std::vector<std::string>& keys,
                                     std::chrono::nanoseconds timeout) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t add(const std::string& key, std::int64_t delta) override;
  bool delete_key(const std::string& key) override;
  std::string local_address() const override;

 private:
  template <class Wait>
  auto in_turns(std::chrono::nanoseconds timeout, Wait wait);

  const std::shared_ptr<Store> store_;
  mutable std::mutex turn_;
};

}  // namespace ddprun
