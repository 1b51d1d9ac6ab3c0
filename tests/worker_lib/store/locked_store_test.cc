#include "worker_lib/store/locked_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/running_store.h"
#include "tests/support/store_of.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using testing_support::kPatience;

// WatchedStore: a store that fails the test if two threads are in it at the same time.
class WatchedStore final : public Store {
  template <class Call>
  auto alone(Call call) {
    EXPECT_EQ(inside_.fetch_add(1), 0) << "two threads at a time";
    const auto leave = [this](void*) { --inside_; };
    const std::unique_ptr<void, decltype(leave)> turn(this, leave);
    return call();
  }

 public:
  explicit WatchedStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override {
    alone([&] { store_->set(key, value); });
  }
  std::string get(const std::string& key, std::chrono::nanoseconds timeout) override {
    return alone([&] { return store_->get(key, timeout); });
  }
  bool check(const std::vector<std::string>& keys) override {
    return alone([&] { return store_->check(keys); });
  }
  std::int64_t add(const std::string& key, std::int64_t delta) override {
    return alone([&] { return store_->add(key, delta); });
  }
  bool delete_key(const std::string& key) override {
    return alone([&] { return store_->delete_key(key); });
  }

 private:
  const std::shared_ptr<Store> store_;
  std::atomic<int> inside_ = 0;
};

class StoreInTurns : public testing::Test {
 protected:
  testing_support::RunningStore server_;
  const std::shared_ptr<Store> owned_ =
      locked_store(std::make_shared<WatchedStore>(testing_support::store_of(server_.port())));
  Store& store_ = *owned_;
};

TEST_F(StoreInTurns, WhoWaitsForAKeyDoesNotKeepOthersFromSettingIt) {
  std::thread waiter([&] {
    EXPECT_EQ(store_.get("late", kPatience), "here");
    EXPECT_EQ(store_.multi_get({"late", "later"}, kPatience),
              (std::vector<std::string>{"here", "too"}));
  });
  for (int i = 0; i < 20; ++i) store_.add("count", 1);
  store_.set("late", "here");
  store_.set("later", "too");
  waiter.join();
  EXPECT_TRUE(store_.check({"late", "count"}));
  EXPECT_TRUE(store_.delete_key("late"));
}

TEST_F(StoreInTurns, AKeyThatDoesNotComeIsATimeoutAllTheSame) {
  const TimePoint start = BootClock::now();
  EXPECT_DIST_ERROR(store_.get("never", milliseconds(600)), DistError::Kind::kTimeout, testing::_);
  EXPECT_GE(BootClock::now() - start, milliseconds(600));
}

}  // namespace
}  // namespace ddprun
