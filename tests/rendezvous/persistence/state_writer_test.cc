#include "rendezvous/persistence/state_writer.h"

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

class StateWriterTest : public testing::Test {
 protected:
  void start(std::size_t compact_bytes = StateDirectory::kCompactBytes) {
    Result<StateDirectory> directory = StateDirectory::open(temporary_.path(), compact_bytes);
    ASSERT_TRUE(directory);
    const auto safe = [this](std::uint64_t number) {
      durable_ = number;
      ++calls_;
    };
    const auto failed = [this](const Error& why) {
      trouble_ = why.message();
      ++troubles_;
      ++calls_;
    };
    const auto well = [this] {
      ++recoveries_;
      ++calls_;
    };
    writer_.emplace(io_, std::move(*directory),
                    StateStoreEvents{.durable = safe, .failed = failed, .well = well});
  }
  template <class Condition>
  bool eventually(Condition condition) {
    return testing_support::eventually_on(io_, condition);
  }
  static StateChange begun(std::uint64_t jobs) { return ServiceBegun{"s", jobs}; }

  TemporaryDirectory temporary_;
  boost::asio::io_context io_{1};
  std::optional<StateWriter> writer_;
  std::uint64_t durable_ = 0;
  int troubles_ = 0;
  int recoveries_ = 0;
  int calls_ = 0;
  std::string trouble_;  // the last one
};

TEST_F(StateWriterTest, SaysWhatIsSafeAndItIs) {
  start();
  for (std::uint64_t number = 1; number <= 100; ++number) writer_->keep(number, begun(number));
  EXPECT_EQ(durable_, 0u) << "nothing before the disk has it";
  ASSERT_TRUE(eventually([&] { return durable_ == 100; }));
  writer_.reset();
  const auto directory = StateDirectory::open(temporary_.path());
  ASSERT_TRUE(directory);
  EXPECT_EQ(decode_state(directory->image())->jobs_begun, 100u);
}

TEST_F(StateWriterTest, TriesAgainUntilTheDiskHasRoom) {
  start();
  {
    const testing_support::FileSizeLimit limit(20);
    writer_->keep(1, begun(1));
    ASSERT_TRUE(eventually([&] { return troubles_ == 1; }));
    writer_->keep(2, begun(2));
    const TimePoint later = in(2 * StateWriter::kRetryPause);
    ASSERT_TRUE(eventually([&] { return BootClock::now() > later; }));
    EXPECT_EQ(troubles_, 1) << "it is said once";
    EXPECT_EQ(durable_, 0u);
  }
  ASSERT_TRUE(eventually([&] { return recoveries_ == 1; }));
  EXPECT_EQ(durable_, 2u);
  writer_.reset();
  const auto directory = StateDirectory::open(temporary_.path());
  ASSERT_TRUE(directory);
  EXPECT_EQ(decode_state(directory->image())->jobs_begun, 2u);
}

TEST_F(StateWriterTest, NothingIsSafeBehindAChangeThatIsTooLargeToBeWritten) {
  start();
  writer_->keep(1, ServiceBegun{std::string(kMaxJournalFrameBytes, 's'), 1});
  ASSERT_TRUE(eventually([&] { return troubles_ == 1; }));
  EXPECT_THAT(trouble_, HasSubstr("more than the limit"));
  writer_->keep(2, JobForgotten{"j"});
  const TimePoint later = in(2 * StateWriter::kRetryPause);
  ASSERT_TRUE(eventually([&] { return BootClock::now() > later; }));
  EXPECT_EQ(durable_, 0u) << "it was never written";
  EXPECT_EQ(recoveries_, 0);
  writer_->keep(3, begun(3));  // replaces the change that was too large
  ASSERT_TRUE(eventually([&] { return recoveries_ == 1; }));
  EXPECT_EQ(durable_, 3u);
  writer_.reset();
  const auto directory = StateDirectory::open(temporary_.path());
  ASSERT_TRUE(directory);
  EXPECT_EQ(decode_state(directory->image())->jobs_begun, 3u);
}

TEST_F(StateWriterTest, ADiskThatHangsIsTroubleUntilItAnswers) {
  start(1);  // so that the journal is soon rewritten
  testing_support::HungFile hung(temporary_ / "journal.new");
  for (std::uint64_t number = 1; number <= 5; ++number) writer_->keep(number, begun(number));
  ASSERT_TRUE(eventually([&] { return troubles_ == 1; }));
  EXPECT_THAT(trouble_, HasSubstr("did not answer"));
  writer_->keep(6, begun(6));
  EXPECT_EQ(durable_, 0u);
  EXPECT_EQ(recoveries_, 0);
  hung.release();
  ASSERT_TRUE(eventually([&] { return durable_ == 6; }));
  EXPECT_EQ(troubles_, 1);
  EXPECT_EQ(recoveries_, 1);
}

TEST_F(StateWriterTest, NothingIsCalledBackWhenItIsGone) {
  start(1);
  testing_support::HungFile hung(temporary_ / "journal.new");
  for (std::uint64_t number = 1; number <= 5; ++number) writer_->keep(number, begun(number));
  ASSERT_TRUE(eventually([&] { return troubles_ == 1; })) << "the write is under way";
  const int calls = calls_;
  hung.release();
  writer_.reset();  // the write has ended and has posted its result
  io_.restart();
  io_.run();
  EXPECT_EQ(calls_, calls);
}

}  // namespace
}  // namespace ddprun
