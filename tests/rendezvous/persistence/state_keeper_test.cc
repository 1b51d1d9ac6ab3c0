#include "rendezvous/persistence/state_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <optional>

#include "rendezvous/persistence/state_codec.h"
#include "tests/support/eventually.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/hung_file.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

using testing_support::in;
using testing_support::TemporaryDirectory;

class StateKeeperTest : public testing::Test {
 protected:
  void start(std::size_t compact_bytes = StateDirectory::kCompactBytes) {
    Result<StateDirectory> directory = StateDirectory::open(temporary_.path(), compact_bytes);
    ASSERT_TRUE(directory);
    const auto safe = [this](std::uint64_t number) {
      safe_ = number;
      ++calls_;
    };
    const auto troubled = [this](const Error& why) {
      trouble_ = why.message();
      ++troubles_;
      ++calls_;
    };
    const auto well = [this] {
      ++recoveries_;
      ++calls_;
    };
    keeper_.emplace(io_, std::move(*directory),
                    StateKeeperEvents{.safe = safe, .troubled = troubled, .well = well});
  }
  template <class Condition>
  bool eventually(Condition condition) {
    return testing_support::eventually_on(io_, condition);
  }
  static StateChange begun(std::uint64_t jobs) { return ServiceBegun{"s", jobs}; }

  TemporaryDirectory temporary_;
  boost::asio::io_context io_{1};
  std::optional<StateKeeper> keeper_;
  std::uint64_t safe_ = 0;
  int troubles_ = 0;
  int recoveries_ = 0;
  int calls_ = 0;
  std::string trouble_;  // the last one
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
    const TimePoint later = in(2 * StateKeeper::kRetryPause);
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

TEST_F(StateKeeperTest, NothingIsSafeBehindAChangeThatIsTooLargeToBeWritten) {
  start();
  keeper_->keep(1, ServiceBegun{std::string(kMaxJournalFrameBytes, 's'), 1});
  ASSERT_TRUE(eventually([&] { return troubles_ == 1; }));
  EXPECT_THAT(trouble_, HasSubstr("more than the limit"));
  keeper_->keep(2, JobForgotten{"j"});
  const TimePoint later = in(2 * StateKeeper::kRetryPause);
  ASSERT_TRUE(eventually([&] { return BootClock::now() > later; }));
  EXPECT_EQ(safe_, 0u) << "it was never written";
  EXPECT_EQ(recoveries_, 0);
  keeper_->keep(3, begun(3));  // what stands in its place
  ASSERT_TRUE(eventually([&] { return recoveries_ == 1; }));
  EXPECT_EQ(safe_, 3u);
  keeper_.reset();
  const auto directory = StateDirectory::open(temporary_.path());
  ASSERT_TRUE(directory);
  EXPECT_EQ(decode_state(directory->image())->jobs_begun, 3u);
}

TEST_F(StateKeeperTest, ADiskThatHangsIsTroubleUntilItAnswers) {
  start(1);  // so that the journal is soon rewritten
  testing_support::HungFile hung(temporary_ / "journal.new");
  for (std::uint64_t number = 1; number <= 5; ++number) keeper_->keep(number, begun(number));
  ASSERT_TRUE(eventually([&] { return troubles_ == 1; }));
  EXPECT_THAT(trouble_, HasSubstr("has not answered"));
  keeper_->keep(6, begun(6));
  EXPECT_EQ(safe_, 0u);
  EXPECT_EQ(recoveries_, 0);
  hung.release();
  ASSERT_TRUE(eventually([&] { return safe_ == 6; }));
  EXPECT_EQ(troubles_, 1);
  EXPECT_EQ(recoveries_, 1);
}

TEST_F(StateKeeperTest, NothingIsCalledBackWhenItIsGone) {
  start(1);
  testing_support::HungFile hung(temporary_ / "journal.new");
  for (std::uint64_t number = 1; number <= 5; ++number) keeper_->keep(number, begun(number));
  ASSERT_TRUE(eventually([&] { return troubles_ == 1; })) << "the write is under way";
  const int calls = calls_;
  hung.release();
  keeper_.reset();  // the write has come to its end, and has said so
  io_.restart();
  io_.run();
  EXPECT_EQ(calls_, calls);
}

}  // namespace
}  // namespace ddprun
