#include "rendezvous/membership/core/leadership.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

template <class Action>
const Action* find(const LeadershipActions& actions) {
  for (const LeadershipAction& action : actions) {
    if (const auto* found = std::get_if<Action>(&action)) return found;
  }
  return nullptr;
}

// Drives a Leadership; all times begin at 0 s.
class LeadershipTest : public testing::Test {
 protected:
  static constexpr EtcdLease kOwn = 7;
  static constexpr EtcdLease kOthers = 9;

  // Returns the number of the request for the leader key.
  std::uint64_t campaign() {
    const auto asked = leadership_.start(at(0));
    return create_after(find<GrantLease>(asked)->number, 0);
  }
  std::uint64_t create_after(std::uint64_t grant, int ms) {
    const auto actions = leadership_.granted(grant, kOwn, Leadership::kLease, at(ms));
    const auto* create = find<CreateLeaderKey>(actions);
    return create ? create->number : 0;
  }
  // Leads in term 5, by a lease that was asked for at 0.
  void lead() {
    const auto won = leadership_.campaigned(campaign(), {5, kOwn, "me", 5}, at(1));
    const auto led = leadership_.state_read(find<ReadState>(won)->number, at(2));
    ASSERT_TRUE(find<Lead>(led));
    ASSERT_EQ(find<Lead>(led)->term, 5);
  }
  LeadershipActions follow() {
    return leadership_.campaigned(campaign(), {4, kOthers, "10.0.0.2:29400", 6}, at(1));
  }
  static TimePoint at(int ms) { return TimePoint(milliseconds(ms)); }

  Leadership leadership_{Rng(1), at(0)};
};

TEST_F(LeadershipTest, LeadsOnlyAfterTheStateWasRead) {
  const auto won = leadership_.campaigned(campaign(), {5, kOwn, "me", 5}, at(1));
  EXPECT_FALSE(find<Lead>(won));
  EXPECT_FALSE(leadership_.serves(at(1)));
  EXPECT_EQ(leadership_.term(), 0);
  leadership_.state_read(find<ReadState>(won)->number, at(2));
  EXPECT_TRUE(leadership_.serves(at(2)));
  EXPECT_EQ(leadership_.term(), 5);
}

// A process that was stopped while it read takes the answer late. Another service may have led
// since.
TEST_F(LeadershipTest, DoesNotLeadIfItsLeaseHasRunOutWhileItRead) {
  const auto won = leadership_.campaigned(campaign(), {5, kOwn, "me", 5}, at(1));
  const auto late = leadership_.state_read(find<ReadState>(won)->number, at(1900));
  EXPECT_FALSE(find<Lead>(late));
  ASSERT_TRUE(find<RevokeLease>(late));
  EXPECT_EQ(find<RevokeLease>(late)->lease, kOwn);
  EXPECT_TRUE(find<GrantLease>(leadership_.tick(*leadership_.deadline())));
}

TEST_F(LeadershipTest, CountsTheLeaseFromTheSendingOfTheAnsweredRequest) {
  lead();
  const int end =
      static_cast<int>(to_ms(Leadership::kLease - Leadership::kLease / Leadership::kMarginShare));
  EXPECT_TRUE(leadership_.serves(at(end - 1)));
  const auto asked = leadership_.tick(at(1000));
  const auto* keep = find<KeepLease>(asked);
  ASSERT_TRUE(keep);
  leadership_.kept(keep->number, true, at(1500));
  EXPECT_TRUE(leadership_.serves(at(1000 + end - 1)));
  EXPECT_FALSE(leadership_.serves(at(1000 + end)));
}

// A stopped process handles other things before its timers.
TEST_F(LeadershipTest, DoesNotServeAfterItsTimeAlthoughNoTimerHasRun) {
  lead();
  EXPECT_FALSE(leadership_.serves(at(10'000)));
  EXPECT_EQ(leadership_.term(), 5);
}

TEST_F(LeadershipTest, ServesAgainInItsTermWhenTheLeaseLives) {
  lead();
  const auto keep = find<KeepLease>(leadership_.tick(at(1000)))->number;
  EXPECT_TRUE(find<Suspend>(leadership_.tick(at(1900))));
  EXPECT_FALSE(find<Suspend>(leadership_.tick(at(2000))));
  // An answer to a request that is too old by now.
  EXPECT_FALSE(find<Resume>(leadership_.kept(keep, true, at(2950))));
  const auto later = find<KeepLease>(leadership_.tick(at(3000)))->number;
  EXPECT_TRUE(find<Resume>(leadership_.kept(later, true, at(3100))));
  EXPECT_TRUE(leadership_.serves(at(3100)));
}

// Its owner has held answers back since the lease ran out.
TEST_F(LeadershipTest, ResumesAlthoughNoTimerHasSeenTheEndOfTheLease) {
  lead();
  find<KeepLease>(leadership_.tick(at(600)));
  const auto keep = find<KeepLease>(leadership_.tick(at(1800)))->number;
  EXPECT_FALSE(leadership_.serves(at(1950)));
  const auto actions = leadership_.kept(keep, true, at(2000));
  EXPECT_TRUE(find<Resume>(actions));
  EXPECT_TRUE(leadership_.serves(at(2000)));
}

TEST_F(LeadershipTest, DoesNotFollowALeaseOfItsOwnThatIsNotRevokedYet) {
  campaign();
  leadership_.tick(at(400));  // the answer is lost, and so is the request to revoke
  const TimePoint next = *leadership_.deadline();
  const auto asked = leadership_.tick(next);
  const auto granted =
      leadership_.granted(find<GrantLease>(asked)->number, kOwn + 1, Leadership::kLease, next);
  const auto found =
      leadership_.campaigned(find<CreateLeaderKey>(granted)->number, {5, kOwn, "me", 6}, next);
  EXPECT_FALSE(find<Follow>(found));
  EXPECT_EQ(find<RevokeLease>(found)->lease, kOwn);
}

TEST_F(LeadershipTest, StepsDownWhenEtcdHasLostTheLease) {
  lead();
  const auto keep = find<KeepLease>(leadership_.tick(at(1000)))->number;
  const auto actions = leadership_.kept(keep, false, at(1001));
  EXPECT_TRUE(find<StepDown>(actions));
  EXPECT_FALSE(find<RevokeLease>(actions));
  EXPECT_EQ(leadership_.term(), 0);
}

TEST_F(LeadershipTest, StepsDownWhenFencedOrWithoutItsKey) {
  lead();
  const auto actions = leadership_.fenced(at(10));
  EXPECT_TRUE(find<StepDown>(actions));
  EXPECT_EQ(find<RevokeLease>(actions)->lease, kOwn);
  EXPECT_FALSE(find<StepDown>(leadership_.fenced(at(11))));
}

TEST_F(LeadershipTest, StepsDownWhenItsKeyIsDeleted) {
  lead();
  EXPECT_TRUE(find<StepDown>(leadership_.leader_key_gone(at(10))));
}

TEST_F(LeadershipTest, AStandbyHoldsNoLeaseAndWatches) {
  const auto actions = follow();
  EXPECT_EQ(find<RevokeLease>(actions)->lease, kOwn);
  EXPECT_EQ(find<Follow>(actions)->leader, "10.0.0.2:29400");
  EXPECT_EQ(find<WatchLeaderKey>(actions)->from, 7);
  EXPECT_TRUE(find<GrantLease>(leadership_.leader_key_gone(at(50))));
}

TEST_F(LeadershipTest, AStandbyChecksAlthoughTheWatchIsSilent) {
  follow();
  ASSERT_EQ(leadership_.deadline(), at(1) + Leadership::kCheckPause);
  EXPECT_TRUE(find<GrantLease>(leadership_.tick(at(2001))));
}

TEST_F(LeadershipTest, RevokesTheLeaseOfALeaderThatIsGoneOnce) {
  follow();
  EXPECT_EQ(find<RevokeLease>(leadership_.leader_process_gone(at(20)))->lease, kOthers);
  EXPECT_TRUE(leadership_.leader_process_gone(at(21)).empty());
  EXPECT_LE(*leadership_.deadline(), at(20) + Leadership::kTryTime);
}

TEST_F(LeadershipTest, RevokesTheLeaseOfALeaderThatIsGoneAfterACheck) {
  follow();
  const auto grant = find<GrantLease>(leadership_.tick(at(2001)))->number;
  EXPECT_TRUE(leadership_.leader_process_gone(at(2002)).empty());
  const auto create = create_after(grant, 2003);
  const auto found = leadership_.campaigned(create, {4, kOthers, "10.0.0.2:29400", 7}, at(2004));
  EXPECT_EQ(find<RevokeLease>(LeadershipActions(found.rbegin(), found.rend()))->lease, kOthers);
  EXPECT_LE(*leadership_.deadline(), at(2004) + Leadership::kTryTime);
}

// The request to revoke it was lost, or the leader lives.
TEST_F(LeadershipTest, FollowsALeaderAgainWhoseKeyIsStillThere) {
  follow();
  leadership_.leader_process_gone(at(20));
  const auto grant = find<GrantLease>(leadership_.tick(*leadership_.deadline()))->number;
  const auto create = create_after(grant, 500);
  const auto found = leadership_.campaigned(create, {4, kOthers, "10.0.0.2:29400", 7}, at(501));
  ASSERT_TRUE(find<Follow>(found));
  EXPECT_EQ(find<Follow>(found)->leader, "10.0.0.2:29400");
}

TEST_F(LeadershipTest, ALateGrantIsRevoked) {
  const auto grant = find<GrantLease>(leadership_.start(at(0)))->number;
  leadership_.tick(at(400));  // it is given up
  const auto actions = leadership_.granted(grant, kOwn, Leadership::kLease, at(401));
  EXPECT_EQ(find<RevokeLease>(actions)->lease, kOwn);
  EXPECT_FALSE(find<CreateLeaderKey>(actions));
}

TEST_F(LeadershipTest, ATryHasItsTimeAndAPauseFollows) {
  leadership_.start(at(0));
  EXPECT_EQ(leadership_.deadline(), at(0) + Leadership::kTryTime);
  EXPECT_TRUE(leadership_.tick(at(400)).empty());
  const TimePoint next = *leadership_.deadline();
  EXPECT_GT(next, at(400));
  EXPECT_TRUE(find<GrantLease>(leadership_.tick(next)));
}

TEST_F(LeadershipTest, AFailedRequestIsRepeatedAfterAPause) {
  const auto create = campaign();
  EXPECT_EQ(find<RevokeLease>(leadership_.failed(create, at(5)))->lease, kOwn);
  EXPECT_TRUE(leadership_.campaigned(create, {5, kOwn, "me", 5}, at(6)).empty());
  EXPECT_TRUE(find<GrantLease>(leadership_.tick(*leadership_.deadline())));
}

TEST_F(LeadershipTest, ResigningRevokesTheLeaseAndEndsEverything) {
  lead();
  EXPECT_EQ(find<RevokeLease>(leadership_.resign(at(10)))->lease, kOwn);
  EXPECT_FALSE(leadership_.deadline());
  EXPECT_FALSE(leadership_.serves(at(10)));
  EXPECT_TRUE(leadership_.tick(at(5000)).empty());
  EXPECT_TRUE(leadership_.leader_key_gone(at(5000)).empty());
}

}  // namespace
}  // namespace ddprun
