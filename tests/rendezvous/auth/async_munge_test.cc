// Tests AsyncMunge, through which an event loop asks munge, also with a munged that hangs.
#include "rendezvous/auth/async_munge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "tests/support/eventually.h"
#include "tests/support/private_munged.h"

namespace ddprun {
namespace {

using testing_support::eventually_on;
using testing_support::PrivateMunged;

class AsyncMungeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = PrivateMunged::missing(); !why.empty()) GTEST_SKIP() << why;
    munged_.emplace();
    munge_.emplace(io_, find_munge(munged_->options()).munge);
  }
  void TearDown() override {
    if (munged_) munged_->go_on();
  }
  void ask(const std::string& statement) {
    munge_->ask(MakeCredential{statement, UserId(geteuid())},
                [this](const MungeOutcome& outcome) { outcomes_.push_back(outcome); });
  }

  std::optional<PrivateMunged> munged_;
  boost::asio::io_context io_{1};
  std::optional<AsyncMunge> munge_;
  std::vector<MungeOutcome> outcomes_;
};

TEST_F(AsyncMungeTest, OutcomesComeInTheOrderOfTheTasks) {
  for (const char* statement : {"a", "b", "c"}) ask(statement);
  EXPECT_TRUE(outcomes_.empty()) << "never from within ask()";
  ASSERT_TRUE(eventually_on(io_, [&] { return outcomes_.size() == 3; }));
  std::string read;
  for (const MungeOutcome& made : outcomes_) {
    ASSERT_TRUE(made) << made.error().message();
    read += munge_->munge().carry_out(ReadCredential{made->text}).value().text;
  }
  EXPECT_EQ(read, "abc");
}

TEST_F(AsyncMungeTest, AMungedThatHangsHoldsNobodyUpForLongerThanItsPatience) {
  munged_->hang();
  ask("a");
  ask("b");
  const TimePoint begun = BootClock::now();
  ASSERT_TRUE(eventually_on(io_, [&] { return outcomes_.size() == 2; }));
  EXPECT_LT(BootClock::now() - begun, AsyncMunge::kPatience + std::chrono::seconds(2));
  for (const MungeOutcome& outcome : outcomes_) {
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, ErrorKind::kTimeout);
  }
  munged_->go_on();
  outcomes_.clear();
  ask("c");
  ASSERT_TRUE(eventually_on(io_, [&] { return outcomes_.size() == 1; }));
  EXPECT_TRUE(outcomes_[0]) << "what nobody waits for any more is passed over";
}

TEST_F(AsyncMungeTest, HasRoomForALimitedNumberOfTasks) {
  munged_->hang();
  for (std::size_t i = 0; i < AsyncMunge::kMaxWaiting + 2; ++i) ask("a");  // one is running
  ASSERT_TRUE(eventually_on(io_, [&] { return !outcomes_.empty(); }));
  EXPECT_EQ(outcomes_[0].error().kind, ErrorKind::kResource) << outcomes_[0].error().message();
}

TEST_F(AsyncMungeTest, CanBeClosedWhileMungedHangs) {
  munged_->hang();
  ask("a");
  const TimePoint begun = BootClock::now();
  munge_.reset();
  EXPECT_LT(BootClock::now() - begun, std::chrono::seconds(1));
  io_.poll();
  EXPECT_TRUE(outcomes_.empty());
}

}  // namespace
}  // namespace ddprun
