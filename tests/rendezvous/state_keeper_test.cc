#include "rendezvous/state_keeper.h"

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <optional>

#include "rendezvous/state_codec.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

class StateKeeperTest : public testing::Test {
 protected:
  void start() {
    Result<StateDirectory> directory = StateDirectory::open(temporary_.path());
    ASSERT_TRUE(directory);
    keeper_.emplace(io_, std::move(*directory),
                    StateKeeperEvents{.safe = [this](std::uint64_t number) { safe_ = number; },
                                      .troubled = [this](const Error&) { ++troubles_; },
                                      .well = [this] { ++recoveries_; }});
  }
  // Lets the loop turn until then.
  template <class Condition>
  bool eventually(Condition condition) {
    const TimePoint deadline = BootClock::now() + std::chrono::seconds(20);
    io_.restart();
    const auto work = boost::asio::make_work_guard(io_);
    while (!condition() && BootClock::now() < deadline) {
      io_.run_one_for(std::chrono::milliseconds(100));
    }
    return condition();
  }
  static StateChange begun(std::uint64_t jobs) { return ServiceBegun{"s", jobs}; }

  TemporaryDirectory temporary_;
  boost::asio::io_context io_{1};
  std::optional<StateKeeper> keeper_;
  std::uint64_t safe_ = 0;
  int troubles_ = 0;
  int recoveries_ = 0;
};

TEST_F(StateKeeperTest, SaysWhatIsSafeAndItIs) {
  start();
  for (std::uint64_t number = 1; number <= 100; ++number) keeper_->keep(number, begun(number));
  EXPECT_EQ(safe_, 0u) << "nothing before the disk has it";
  ASSERT_TRUE(eventually([&] { return safe_ == 100; }));
  keeper_.reset();
  const auto directory = StateDirectory::open(temporary_.path());
  ASSERT_TRUE(directory);
  EXPECT_EQ(decode_state(directory->image())->jobs_begun, 100u);
}

TEST_F(StateKeeperTest, TriesAgainUntilTheDiskHasRoom) {
  start();
  {
    const testing_support::FileSizeLimit limit(20);
    keeper_->keep(1, begun(1));
    ASSERT_TRUE(eventually([&] { return troubles_ == 1; }));
    keeper_->keep(2, begun(2));
    const TimePoint later = BootClock::now() + 2 * StateKeeper::kRetryPause;
    ASSERT_TRUE(eventually([&] { return BootClock::now() > later; }));
    EXPECT_EQ(troubles_, 1) << "it is said once";
    EXPECT_EQ(safe_, 0u);
  }
  ASSERT_TRUE(eventually([&] { return recoveries_ == 1; }));
  EXPECT_EQ(safe_, 2u);
  keeper_.reset();
  const auto directory = StateDirectory::open(temporary_.path());
  ASSERT_TRUE(directory);
  EXPECT_EQ(decode_state(directory->image())->jobs_begun, 2u);
}

TEST_F(StateKeeperTest, NothingIsCalledBackWhenItIsGone) {
  start();
  keeper_->keep(1, begun(1));
  io_.poll();  // the write has begun
  keeper_.reset();
  io_.restart();
  io_.poll();
  EXPECT_EQ(safe_, 0u);
}

}  // namespace
}  // namespace ddprun
