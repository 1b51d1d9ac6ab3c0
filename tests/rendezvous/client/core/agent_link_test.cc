#include "rendezvous/client/core/agent_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <functional>

namespace ddprun {
namespace {

using testing::HasSubstr;

using std::chrono::milliseconds;
using std::chrono::seconds;

class AgentLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    AgentLinkOptions options;
    options.service = "node0:29400";
    options.join_timeout = seconds(60);
    link_.emplace(options, Rng(1), now_);
  }

  void take(LinkActions actions) {
    for (LinkAction& action : actions) {
      if (auto* lost = std::get_if<ServiceLost>(&action)) {
        ++lost_count_;
        lost_ = *lost;
      }
      if (auto* refuses = std::get_if<LinkPortRefuses>(&action)) {
        refused_for_.push_back(refuses->so_far);
      }
      if (std::holds_alternative<LinkHello>(action)) ++hellos_;
      if (std::holds_alternative<LinkLookUp>(action)) {
        ++look_ups_;
        if (name_service_answers_) take(link_->looked_up(now_));
      }
      if (auto* connect = std::get_if<LinkConnect>(&action)) {
        ++connects_;
        places_.push_back(connect->place);
      }
      if (std::holds_alternative<LinkClose>(action)) ++closes_;
      if (auto* send = std::get_if<LinkTransmit>(&action)) {
        sent_.push_back(send->message);
        if (send->with_ranks) ranks_sent_.push_back(now_);
      }
      if (auto* deliver = std::get_if<LinkDeliver>(&action)) {
        if (const auto directive = directive_of(deliver->message)) delivered_.push_back(*directive);
      }
    }
  }

  void bring_up(bool embedded = false) {
    take(link_->start(now_));
    take(link_->connected(now_));
    welcome_.embedded = embedded;
    take(link_->received(welcome_, now_));
  }

  // Lets time pass tick by tick. `answers`: every heartbeat is acknowledged at once.
  void pass(Duration time, bool answers) {
    const TimePoint end = now_ + time;
    while (link_->deadline() && *link_->deadline() <= end) {
      now_ = std::max(now_, *link_->deadline());
      sent_.clear();
      take(link_->tick(now_));
      for (const AgentMessage& message : sent_) {
        if (const auto* beat = std::get_if<Heartbeat>(&message); beat && answers) {
          ++beats_;
          take(link_->received(
              HeartbeatAck{
                  .number = beat->number, .is_watched = is_watched_, .ranks_every = ranks_every_},
              now_));
        }
      }
    }
    now_ = end;
  }

  void next_try() {
    const int before = connects_;
    for (int i = 0; i < 100 && connects_ == before; ++i) pass(milliseconds(100), false);
    ASSERT_GT(connects_, before);
  }

  TimePoint now_ = TimePoint(seconds(1000));
  Welcome welcome_{.instance = "s-1",
                   .heartbeat_interval = seconds(1),
                   .agent_patience = seconds(4),
                   .embedded = false,
                   .host = "node0"};
  std::optional<AgentLink> link_;
  int lost_count_ = 0;
  int hellos_ = 0;
  std::vector<Duration> refused_for_;
  int connects_ = 0;
  std::vector<std::size_t> places_;  // of the connects
  int look_ups_ = 0;
  bool name_service_answers_ = true;
  int closes_ = 0;
  std::optional<ServiceLost> lost_;
  std::vector<AgentMessage> sent_;
  std::vector<TimePoint> ranks_sent_;  // when a heartbeat was to have them
  bool is_watched_ = false;            // as acknowledgements say
  Duration ranks_every_{};             // as they say, too
  int beats_ = 0;                      // that were answered
  std::vector<Directive> delivered_;
};

TEST_F(AgentLinkTest, SendsNoRanksUnlessTheServiceAsksForThem) {
  bring_up();
  pass(seconds(60), true);
  EXPECT_TRUE(ranks_sent_.empty()) << "the job is not watched, or the service is older";
}

TEST_F(AgentLinkTest, SendsTheRanksAtOnceThenOnceASecondUntilNobodyWatches) {
  welcome_.heartbeat_interval = seconds(4);
  welcome_.agent_patience = seconds(16);
  bring_up();
  is_watched_ = true;
  pass(seconds(4), true);
  ASSERT_EQ(ranks_sent_.size(), 1u);
  EXPECT_EQ(ranks_sent_[0], TimePoint(seconds(1004)));
  pass(seconds(6), true);
  EXPECT_EQ(ranks_sent_.size(), 7u) << "more often than heartbeats came before";
  is_watched_ = false;
  pass(seconds(1), true);
  ranks_sent_.clear();
  beats_ = 0;
  pass(seconds(40), true);
  EXPECT_TRUE(ranks_sent_.empty());
  EXPECT_EQ(beats_, 10);
}

TEST_F(AgentLinkTest, MoreFrequentHeartbeatsHaveTheRanksOnlyOnceASecond) {
  welcome_.heartbeat_interval = milliseconds(100);
  bring_up();
  is_watched_ = true;
  pass(seconds(9), true);
  EXPECT_GT(beats_, 80);
  EXPECT_NEAR(static_cast<double>(ranks_sent_.size()), 10, 1);
}

TEST_F(AgentLinkTest, AServiceOfManyRanksAsksForThemLessOften) {
  bring_up();
  is_watched_ = true;
  ranks_every_ = seconds(4);
  pass(seconds(41), true);
  EXPECT_EQ(ranks_sent_.size(), 11u);
  EXPECT_GE(beats_, 40) << "the lease needs as many heartbeats as before";
  ranks_sent_.clear();
  ranks_every_ = std::chrono::hours(1);
  pass(seconds(40), true);
  EXPECT_GE(ranks_sent_.size(), 7u) << "ranks last 10 s at the service";
}

TEST_F(AgentLinkTest, AnotherServiceAsksAnewForTheRanks) {
  bring_up();
  is_watched_ = true;
  pass(seconds(3), true);
  take(link_->disconnected("reset", now_));
  next_try();
  take(link_->connected(now_));
  take(link_->received(welcome_, now_));
  is_watched_ = false;
  ranks_sent_.clear();
  pass(seconds(5), true);
  EXPECT_TRUE(ranks_sent_.empty());
}

TEST_F(AgentLinkTest, SaysHelloOnEveryNewConnection) {
  bring_up();
  EXPECT_EQ(hellos_, 1);
  take(link_->disconnected("reset", now_));
  pass(milliseconds(100), true);
  EXPECT_EQ(connects_, 2);
  take(link_->connected(now_));
  EXPECT_EQ(hellos_, 2);
}

TEST_F(AgentLinkTest, SaysOnceWhyItWaitsForAServiceThatHasNeverAnswered) {
  take(link_->start(now_));
  take(link_->disconnected("Connection refused", now_));
  while (now_ < TimePoint(seconds(1000)) + AgentLink::kQuietTime) {
    EXPECT_TRUE(delivered_.empty()) << "it may only be a little later than this node";
    next_try();
    take(link_->disconnected("Connection refused", now_));
  }
  for (int i = 0; i < 5; ++i) {
    next_try();
    take(link_->disconnected("No route to host", now_));
  }
  ASSERT_EQ(delivered_.size(), 1u);
  EXPECT_EQ(std::get<Wait>(delivered_[0]).reason,
            "no rendezvous service answers at node0:29400 yet: Connection refused");
}

TEST_F(AgentLinkTest, SaysNothingOfAServiceThatComesBack) {
  bring_up();
  take(link_->disconnected("reset", now_));
  for (int i = 0; i < 5; ++i) {
    next_try();
    take(link_->disconnected("Connection refused", now_));
  }
  EXPECT_TRUE(delivered_.empty()) << "ServiceLost says it";
}

// The Hello that is already on the way does not have the change. Without a status message,
// workers that have ended meanwhile would count as running for ever.
TEST_F(AgentLinkTest, WhatChangesBeforeItsWelcomeIsSaidAfterIt) {
  take(link_->start(now_));
  take(link_->connected(now_));
  take(link_->send(AgentStatus{.phase = AgentPhase::kStopping}));
  take(link_->send(AgentStatus{.phase = AgentPhase::kFinished}));
  EXPECT_TRUE(sent_.empty());
  take(link_->received(welcome_, now_));
  ASSERT_EQ(sent_.size(), 1u) << "the newest says all there is to say";
  EXPECT_EQ(std::get<AgentStatus>(sent_[0]).phase, AgentPhase::kFinished);
  sent_.clear();

  take(link_->disconnected("reset", now_));
  take(link_->send(AgentStatus{.phase = AgentPhase::kIdle}));
  pass(milliseconds(100), true);
  take(link_->connected(now_));
  take(link_->received(welcome_, now_));
  EXPECT_TRUE(sent_.empty()) << "the Hello that came after it has said it";
}

TEST_F(AgentLinkTest, HeldLeaseNeedsOnlyAnswers) {
  bring_up();
  pass(seconds(300), true);
  EXPECT_EQ(lost_count_, 0);
}

TEST_F(AgentLinkTest, TriesOftenWhileItsLeaseRunsOut) {
  bring_up();
  take(link_->disconnected("reset", now_));
  const int before = connects_;
  TimePoint last = now_;
  while (lost_count_ == 0) {
    const int tried = connects_;
    pass(milliseconds(1), false);
    if (connects_ == tried) continue;
    EXPECT_LE(now_ - last, milliseconds(251));
    last = now_;
    take(link_->disconnected("refused", now_));
  }
  EXPECT_GE(connects_ - before, 16);
}

TEST_F(AgentLinkTest, IsLostWhenNothingIsAnsweredForItsPatience) {
  bring_up();
  pass(seconds(10), true);
  pass(milliseconds(2900), false);
  EXPECT_EQ(lost_count_, 0);
  pass(milliseconds(1200), false);
  ASSERT_EQ(lost_count_, 1);
  EXPECT_FALSE(lost_->for_good) << "a service of its own may come back";
  EXPECT_THAT(lost_->reason, HasSubstr("node0:29400"));
}

TEST_F(AgentLinkTest, BeatsWhenTheServiceAsksForIt) {
  bring_up();
  pass(seconds(1), true);
  const auto next_after = [&](Duration asked) {
    take(link_->received(HeartbeatAck{1, asked}, now_));
    return *link_->deadline() - now_;
  };
  EXPECT_EQ(next_after(milliseconds(975)), milliseconds(975));
  EXPECT_EQ(next_after(milliseconds(1025)), milliseconds(1025));
  EXPECT_EQ(next_after(Duration(0)), seconds(1)) << "an older service asks for nothing";
  EXPECT_EQ(next_after(seconds(3600)), milliseconds(1500)) << "its lease is not given away";
  EXPECT_EQ(next_after(milliseconds(1)), milliseconds(500));
}

TEST_F(AgentLinkTest, BeatsWithoutBeingAskedWhereNoAnswerComes) {
  bring_up();
  pass(seconds(1), false);
  EXPECT_EQ(*link_->deadline() - now_, seconds(1));
}

// The lease is counted from when the acknowledged message was sent, not from when its answer
// came.
TEST_F(AgentLinkTest, ALateAnswerDoesNotStretchTheLease) {
  bring_up();
  const TimePoint sent_at = now_ + seconds(1);
  pass(seconds(1), false);  // heartbeat 1 is sent
  now_ += milliseconds(2500);
  take(link_->received(HeartbeatAck{1}, now_));
  pass(sent_at + seconds(4) - now_ - milliseconds(1), false);
  EXPECT_EQ(lost_count_, 0);
  pass(milliseconds(2), false);
  EXPECT_EQ(lost_count_, 1);
}

TEST_F(AgentLinkTest, AShortOutageGoesUnnoticed) {
  bring_up();
  pass(seconds(5), true);
  take(link_->disconnected("reset by peer", now_));
  pass(seconds(2), false);
  take(link_->connected(now_));
  take(link_->received(welcome_, now_));
  pass(seconds(20), true);
  EXPECT_EQ(lost_count_, 0);
}

// A cut network, or a host that was stopped for a while, looks the same as an agent that has
// ended.
TEST_F(AgentLinkTest, AnEmbeddedServiceThatIsSilentIsTriedUntilTheJoinTimeout) {
  bring_up(true);
  pass(seconds(5), false);
  ASSERT_EQ(lost_count_, 1);
  EXPECT_FALSE(lost_->for_good);
  pass(seconds(30), false);
  take(link_->connected(now_));
  take(link_->received(welcome_, now_));
  pass(seconds(20), true);
  EXPECT_EQ(lost_count_, 1) << "after 35 s of silence it is as before";

  SetUp();
  lost_count_ = 0;
  bring_up(true);
  pass(milliseconds(59'900), false);
  EXPECT_EQ(lost_count_, 1);
  pass(milliseconds(200), false);
  ASSERT_EQ(lost_count_, 2);
  EXPECT_TRUE(lost_->for_good);
  EXPECT_EQ(lost_->code, ExitCode::kServiceLost);
  EXPECT_THAT(lost_->reason, HasSubstr("has not answered for 60.0 s"));
  EXPECT_THAT(lost_->reason, HasSubstr("agent on node0"));
  EXPECT_FALSE(link_->deadline());
}

// --- several services with a common state ---

class AgentLinkWithTerms : public AgentLinkTest {
 protected:
  void lead(ServiceTerm term) {
    welcome_.term = term;
    bring_up();
  }
  void lose() { take(link_->disconnected("broken", now_)); }
};

TEST_F(AgentLinkWithTerms, ADirectiveOfAnOlderTermIsRefused) {
  lead(7);
  take(link_->received(Stop{.generation = Generation(1), .term = 6}, now_));
  take(link_->received(Wait{.reason = "none", .term = 0}, now_));
  EXPECT_TRUE(delivered_.empty()) << "a former leader, and a service without etcd";
  take(link_->received(Assignment{.generation = Generation(2), .term = 7}, now_));
  EXPECT_EQ(delivered_.size(), 1);
  take(link_->received(Wait{.reason = "none", .term = 8}, now_));
  take(link_->received(Stop{.generation = Generation(2), .term = 7}, now_));
  EXPECT_EQ(delivered_.size(), 2) << "the term grows with each message";
  EXPECT_EQ(link_->term(), 8);
}

TEST_F(AgentLinkWithTerms, AFormerLeaderIsLeftAndNotFollowed) {
  lead(7);
  lose();
  pass(milliseconds(300), false);
  take(link_->connected(now_));
  welcome_.term = 6;
  const int closes = closes_;
  take(link_->received(welcome_, now_));
  EXPECT_EQ(closes_, closes + 1);
  EXPECT_FALSE(link_->is_up());
  pass(milliseconds(300), false);
  take(link_->connected(now_));
  welcome_.term = 8;
  take(link_->received(welcome_, now_));
  EXPECT_TRUE(link_->is_up());
  EXPECT_EQ(lost_count_, 0);
}

TEST_F(AgentLinkWithTerms, ASilentLeaderIsLeftLongBeforeThePatienceIsOver) {
  lead(7);
  pass(seconds(10), true);
  EXPECT_EQ(connects_, 1);
  pass(welcome_.heartbeat_interval + welcome_.agent_patience / 4 + milliseconds(300), false);
  EXPECT_GE(closes_, 1);
  EXPECT_EQ(connects_, 2) << "all services are asked again";
  EXPECT_EQ(lost_count_, 0);
  pass(welcome_.agent_patience, false);
  EXPECT_EQ(lost_count_, 1);
}

TEST_F(AgentLinkWithTerms, TheLeaseOfANewConnectionBeginsWithAHeartbeatAtOnce) {
  lead(7);
  sent_.clear();
  take(link_->tick(now_));
  ASSERT_EQ(sent_.size(), 1);
  EXPECT_TRUE(std::holds_alternative<Heartbeat>(sent_[0]));
}

TEST_F(AgentLinkWithTerms, AnEmbeddedServiceIsNotGoneWithItsHost) {
  welcome_.term = 7;
  bring_up(true);
  lose();
  for (int i = 0; i < 15; ++i) {
    pass(seconds(1), false);
    take(link_->disconnected("refused", now_, LinkFailure::kRefused));
  }
  ASSERT_EQ(lost_count_, 1);
  EXPECT_FALSE(lost_->for_good) << lost_->reason;
}

TEST_F(AgentLinkTest, AHostThatRefusesConnectionsForTenSecondsHasLostItsEmbeddedService) {
  bring_up(true);
  take(link_->disconnected("End of file", now_));
  TimePoint first_refused;
  while (now_ < TimePoint(seconds(1030)) && !(lost_ && lost_->for_good)) {
    const int before = connects_;
    pass(milliseconds(10), false);
    if (connects_ == before) continue;
    if (first_refused == TimePoint()) first_refused = now_;
    take(link_->disconnected("Connection refused", now_, LinkFailure::kRefused));
  }
  EXPECT_EQ(lost_count_, 2) << "at its patience, and for good";
  EXPECT_TRUE(lost_->for_good);
  EXPECT_EQ(lost_->code, ExitCode::kServiceLost);
  EXPECT_THAT(lost_->reason, HasSubstr("refused"));
  EXPECT_THAT(lost_->reason, HasSubstr("agent on node0"));
  EXPECT_LE(now_ - first_refused, seconds(10) + milliseconds(100));
}

TEST_F(AgentLinkTest, OnlyRefusalsInARowSayThatAnEmbeddedServiceIsGone) {
  bring_up(true);
  take(link_->disconnected("End of file", now_));
  for (int i = 0; i < 40; ++i) {
    next_try();
    const bool refused = i % 8 != 0;
    take(link_->disconnected(refused ? "Connection refused" : "No route to host", now_,
                             refused ? LinkFailure::kRefused : LinkFailure::kOther));
  }
  EXPECT_FALSE(lost_->for_good);
}

// The daemon may be restarted.
TEST_F(AgentLinkTest, ADaemonThatRefusesConnectionsIsTriedUntilTheJoinTimeout) {
  bring_up(false);
  take(link_->disconnected("End of file", now_));
  while (now_ < TimePoint(seconds(1059))) {
    next_try();
    take(link_->disconnected("Connection refused", now_, LinkFailure::kRefused));
    ASSERT_FALSE(lost_ && lost_->for_good);
  }
  pass(seconds(2), false);
  EXPECT_TRUE(lost_->for_good);
  EXPECT_EQ(lost_->code, ExitCode::kServiceLost);
  EXPECT_THAT(lost_->reason, HasSubstr("Connection refused"));
}

TEST_F(AgentLinkTest, AServiceThatNeverAnswersIsGivenUpAtTheJoinDeadline) {
  take(link_->start(now_));
  for (int i = 0; i < 100 && lost_count_ == 0; ++i) {
    take(link_->disconnected("Connection refused", now_));
    pass(seconds(1), false);
  }
  ASSERT_EQ(lost_count_, 1);
  EXPECT_TRUE(lost_->for_good);
  EXPECT_EQ(lost_->code, ExitCode::kJoinTimeout);
  EXPECT_THAT(lost_->reason, HasSubstr("Connection refused"));
}

TEST_F(AgentLinkTest, ATryThatHangsIsEndedAndMadeAgain) {
  take(link_->start(now_));
  EXPECT_EQ(connects_, 1);
  pass(milliseconds(3100), false);
  EXPECT_EQ(closes_, 1);
  EXPECT_EQ(connects_, 2);
  take(link_->connected(now_));
  pass(milliseconds(3100), false);  // connected, but no welcome arrives
  EXPECT_EQ(closes_, 2);
}

// A dead first name server costs five seconds per query. That is longer than one attempt to
// connect may take.
TEST_F(AgentLinkTest, ASlowNameServiceIsWaitedForUntilTheJoinDeadline) {
  name_service_answers_ = false;
  take(link_->start(now_));
  pass(seconds(50), false);
  EXPECT_EQ(look_ups_, 1) << "one question, asked once";
  EXPECT_EQ(connects_, 0);
  EXPECT_EQ(lost_count_, 0);
  take(link_->looked_up(now_));
  EXPECT_EQ(connects_, 1);
  pass(seconds(2), false);
  EXPECT_EQ(closes_, 0) << "the try to connect has its whole time";
  take(link_->connected(now_));
  EXPECT_EQ(hellos_, 1);
}

TEST_F(AgentLinkTest, ANameServiceThatNeverAnswersIsNamedAtTheJoinDeadline) {
  name_service_answers_ = false;
  take(link_->start(now_));
  pass(seconds(61), false);
  ASSERT_EQ(lost_count_, 1);
  EXPECT_EQ(lost_->code, ExitCode::kJoinTimeout);
  EXPECT_THAT(lost_->reason, HasSubstr("name service"));
}

class TakenPort : public AgentLinkTest {
 protected:
  void SetUp() override {
    AgentLinkOptions options;
    options.service = "node0:29400";
    options.must_answer = true;
    link_.emplace(options, Rng(1), now_);
    take(link_->start(now_));
  }
  void expect_that_another_program_has_it() {
    ASSERT_EQ(lost_count_, 1);
    EXPECT_TRUE(lost_->for_good);
    EXPECT_EQ(lost_->code, ExitCode::kAddress);
    EXPECT_THAT(lost_->reason, HasSubstr("not a rendezvous service"));
  }
  const TimePoint begun_ = now_;
};

TEST_F(TakenPort, ByAProgramThatSaysNothingIsNoService) {
  for (int i = 0; i < AgentLink::kMaxDeafTries; ++i) {
    EXPECT_EQ(lost_count_, 0);
    take(link_->connected(now_));
    pass(milliseconds(3000), false);
    if (i + 1 < AgentLink::kMaxDeafTries) next_try();
  }
  expect_that_another_program_has_it();
}

// A service that is overloaded closes connections early, too.
TEST_F(TakenPort, ByAProgramThatClosesConnectionsIsTriedForSeconds) {
  while (lost_count_ == 0 && now_ < begun_ + seconds(20)) {
    take(link_->connected(now_));
    take(link_->disconnected("Connection reset by peer", now_));
    if (lost_count_ == 0) next_try();
  }
  EXPECT_GE(now_ - begun_, AgentLink::kEndedEarly);
  EXPECT_LE(now_ - begun_, AgentLink::kEndedEarly + seconds(2));
  expect_that_another_program_has_it();
}

// The program that had the port has ended. It was a service that is being restarted, or an agent
// of an earlier job.
TEST_F(TakenPort, ByAProgramThatIsGoneNowIsTriedUntilTheJoinDeadline) {
  while (lost_count_ == 0 && now_ < begun_ + seconds(20)) {
    take(link_->disconnected("Connection refused", now_, LinkFailure::kRefused));
    next_try();
    take(link_->connected(now_));
    take(link_->disconnected("Connection reset by peer", now_));
    next_try();
  }
  EXPECT_EQ(lost_count_, 0);
}

// Then the agent can take the port. Otherwise it would wait for a service that is never started.
TEST_F(TakenPort, ByAProgramThatIsGoneNowIsToldWithEachRefusal) {
  take(link_->connected(now_));
  take(link_->disconnected("Connection reset by peer", now_));
  next_try();
  const TimePoint first = now_;
  for (int i = 0; i < 3; ++i) {
    take(link_->disconnected("Connection refused", now_, LinkFailure::kRefused));
    ASSERT_EQ(refused_for_.size(), static_cast<std::size_t>(i + 1));
    EXPECT_EQ(refused_for_.back(), now_ - first);
    next_try();
  }
  take(link_->connected(now_));
  take(link_->disconnected("Connection reset by peer", now_));
  next_try();
  take(link_->disconnected("Connection refused", now_, LinkFailure::kRefused));
  EXPECT_EQ(refused_for_.back(), Duration(0));
}

// A program that puts connections off for ever is not a service.
TEST_F(TakenPort, ByAServiceThatPutsItOffIsTriedForAMinute) {
  while (lost_count_ == 0 && now_ < begun_ + 2 * AgentLink::kPutOffFor) {
    take(link_->connected(now_));
    take(link_->disconnected("try later", now_, LinkFailure::kPutOff));
    if (lost_count_ == 0) next_try();
  }
  EXPECT_GE(now_ - begun_, AgentLink::kPutOffFor + AgentLink::kEndedEarly);
  EXPECT_LE(now_ - begun_, AgentLink::kPutOffFor + AgentLink::kEndedEarly + seconds(3));
  expect_that_another_program_has_it();
}

// The daemon on the agent's own host was stopped for a while. It still listens, and it is a
// service.
TEST_F(AgentLinkTest, WhoHasSaidWelcomeOnceIsAServiceHoweverLongItIsSilent) {
  AgentLinkOptions options;
  options.service = "node0:29400";
  options.must_answer = true;
  link_.emplace(options, Rng(1), now_);
  bring_up();
  pass(seconds(5), false);
  ASSERT_EQ(lost_count_, 1);
  EXPECT_FALSE(lost_->for_good);
  for (int i = 0; i < 2 * AgentLink::kMaxDeafTries; ++i) {
    next_try();
    take(link_->connected(now_));
    pass(seconds(3), false);  // the kernel accepts, but nothing answers
  }
  next_try();
  take(link_->connected(now_));
  take(link_->garbled("it does not begin with DDPR", now_));
  EXPECT_EQ(lost_count_, 1) << lost_->reason;
  next_try();
  take(link_->connected(now_));
  take(link_->received(welcome_, now_));
  pass(seconds(20), true);
  EXPECT_EQ(lost_count_, 1);
}

// The service ends in order to be restarted. This is an outage like any other, but it was
// announced.
TEST_F(AgentLinkTest, ASilenceChangesNothingButWhatIsSaid) {
  bring_up();
  take(link_->received(Silence{"it is started again"}, now_));
  ASSERT_EQ(delivered_.size(), 1u);
  ASSERT_TRUE(std::get_if<Wait>(&delivered_[0])) << "which running workers do not notice";
  take(link_->disconnected("End of file", now_));
  pass(seconds(3), false);
  EXPECT_EQ(lost_count_, 0);
  pass(seconds(2), false);
  ASSERT_EQ(lost_count_, 1);
  EXPECT_FALSE(lost_->for_good);
  EXPECT_THAT(lost_->reason, HasSubstr("it is started again"));
}

TEST_F(AgentLinkTest, ASilenceWithoutAReasonIsNotTold) {
  bring_up();
  take(link_->received(Silence{""}, now_));
  EXPECT_TRUE(delivered_.empty());
}

// The service's disk is full. It says so instead of sending a Welcome.
TEST_F(AgentLinkTest, WhoSaysThatItAdmitsNobodyNowIsTriedUntilTheJoinDeadline) {
  AgentLinkOptions options;
  options.service = "node0:29400";
  options.join_timeout = seconds(60);
  options.must_answer = true;
  link_.emplace(options, Rng(1), now_);
  take(link_->start(now_));
  for (int i = 0; i < 2 * AgentLink::kMaxDeafTries; ++i) {
    take(link_->connected(now_));
    take(link_->received(Silence{"No space left on device"}, now_));
    take(link_->disconnected("End of file", now_));
    next_try();
  }
  EXPECT_EQ(lost_count_, 0);
  pass(seconds(61), false);
  ASSERT_EQ(lost_count_, 1);
  EXPECT_EQ(lost_->code, ExitCode::kJoinTimeout);
  EXPECT_THAT(lost_->reason, HasSubstr("No space left"));
}

TEST_F(AgentLinkTest, WhyAServiceDoesNotServeIsSaidOnceAndWithoutTheEndOfItsConnection) {
  AgentLinkOptions options;
  options.service = "node0:29400";
  options.join_timeout = milliseconds(1);
  link_.emplace(options, Rng(1), now_);
  take(link_->start(now_));
  take(link_->connected(now_));
  take(link_->received(Silence{"No space left on device"}, now_));
  take(link_->disconnected("End of file", now_));
  pass(milliseconds(10), false);
  ASSERT_EQ(lost_count_, 1);
  EXPECT_EQ(lost_->reason,
            "no rendezvous service answered at node0:29400 within 1 ms (--rdzv-conf=join_timeout): "
            "No space left on device");
}

TEST_F(AgentLinkTest, WhatIsNoMessageOfOursComesFromNoService) {
  take(link_->start(now_));
  take(link_->connected(now_));
  take(link_->garbled("it does not begin with DDPR", now_));
  ASSERT_EQ(lost_count_, 1);
  EXPECT_TRUE(lost_->for_good);
}

TEST_F(AgentLinkTest, WithoutTlsItEndsOnlyWhereNobodyHasSpokenYet) {
  take(link_->start(now_));
  take(link_->connected(now_));
  take(link_->received(welcome_, now_));
  take(link_->disconnected("cut", now_));
  next_try();
  take(link_->connected(now_));
  take(link_->without_tls("the certificate has expired", now_));
  EXPECT_EQ(lost_count_, 0) << "an impostor of the service ends nothing";

  SetUp();  // another agent, which was never welcomed
  take(link_->start(now_));
  take(link_->connected(now_));
  take(link_->without_tls("the certificate has expired", now_));
  ASSERT_EQ(lost_count_, 1);
  EXPECT_TRUE(lost_->for_good);
  EXPECT_EQ(lost_->code, ExitCode::kRefused);
  EXPECT_NE(lost_->reason.find("the certificate has expired"), std::string::npos);
}

TEST_F(AgentLinkTest, StatusIsSentOnlyWhileTheLinkIsUp) {
  take(link_->start(now_));
  take(link_->send(AgentStatus{}));
  EXPECT_TRUE(sent_.empty());
  take(link_->connected(now_));
  take(link_->received(welcome_, now_));
  take(link_->send(AgentStatus{}));
  EXPECT_EQ(sent_.size(), 1u);
}

TEST_F(AgentLinkTest, LeavingEndsTheTries) {
  bring_up();
  take(link_->leave(Leave{SIGTERM, ""}));
  EXPECT_TRUE(std::holds_alternative<Leave>(sent_.back()));
  EXPECT_FALSE(link_->deadline());
  take(link_->disconnected("closed", now_));
  EXPECT_FALSE(link_->deadline());
}

TEST_F(AgentLinkTest, AServiceThatIsNotToBeFollowedEndsAllButWhoWasWelcomed) {
  take(link_->start(now_));
  take(link_->connected(now_));
  const LinkActions out = link_->distrusted("it is another user's", now_);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(std::get<ServiceRefused>(out[1]).reason,
            "this node does not trust the rendezvous service at node0:29400: it is another user's");
  EXPECT_FALSE(link_->deadline());

  SetUp();
  welcome_.instance = "i";
  bring_up();
  take(link_->distrusted("it is another user's", now_));
  EXPECT_TRUE(link_->deadline()) << "another program has its port; it may come back";
}

TEST_F(AgentLinkTest, DirectivesAreHandedOn) {
  bring_up();
  take(link_->received(Stop{Generation(3), "failure"}, now_));
  ASSERT_EQ(delivered_.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Stop>(delivered_[0]));
}

// A service that may be at one of several ports.
class AgentLinkOfAPlace : public AgentLinkTest {
 protected:
  void SetUp() override {
    AgentLinkOptions options;
    options.service = "n17:20812";
    options.next_services = {"n17:20813", "n17:20814"};
    options.join_timeout = seconds(60);
    link_.emplace(options, Rng(1), now_);
    take(link_->start(now_));
    welcome_.own = true;
  }
  void refuse() { take(link_->disconnected("Connection refused", now_, LinkFailure::kRefused)); }
};

TEST_F(AgentLinkOfAPlace, TriesAllPlacesInTurnAndPausesOnlyAfterTheLast) {
  for (int i = 0; i < 3; ++i) refuse();
  EXPECT_EQ(places_, (std::vector<std::size_t>{0, 1, 2}));
  next_try();
  EXPECT_EQ(places_.back(), 0u);
  EXPECT_EQ(lost_count_, 0);
  take(link_->disconnected("reset", now_));
  take(link_->connected(now_));
  take(link_->received(welcome_, now_));
  EXPECT_EQ(link_->place(), 1u);
}

TEST_F(AgentLinkOfAPlace, NoOtherProgramThereEndsTheSearch) {
  const Refused of_another{"this service is only for job '7'"};
  Welcome to_all = welcome_;
  to_all.own = false;
  const std::vector<std::function<LinkActions()>> ends{
      [&] { return link_->garbled("not our protocol", now_); },
      [&] { return link_->received(of_another, now_); },
      [&] { return link_->received(to_all, now_); },
      [&] { return link_->received(Silence{"it restarts"}, now_); },
      [&] { return link_->received(End{}, now_); },
      [&] { return link_->distrusted("it runs as user 7", now_); },
      [&] { return link_->without_tls("no TLS", now_); },
      [&] { return link_->disconnected("End of file", now_); },
      [&] { return link_->tick(now_ += AgentLink::kSeekTime); }};
  for (const auto& end : ends) {
    const std::size_t before = link_->place();
    take(link_->connected(now_));
    take(end());
    if (before == 2) next_try();
    EXPECT_EQ(link_->place(), (before + 1) % 3);
  }
  EXPECT_EQ(lost_count_, 0);
  EXPECT_TRUE(delivered_.empty());
  EXPECT_TRUE(link_->deadline());
}

TEST_F(AgentLinkOfAPlace, SaysOnceWhyItGoesOnWhenEveryServiceRefusesIt) {
  const TimePoint begin = now_;
  while (now_ < begin + seconds(30)) {
    take(link_->connected(now_));
    take(link_->received(Refused{"its key is another one"}, now_));  // n17:20812
    refuse();
    refuse();
    EXPECT_EQ(delivered_.size(), now_ < begin + AgentLink::kQuietTime ? 0u : 1u);
    next_try();
  }
  ASSERT_EQ(delivered_.size(), 1u);
  EXPECT_EQ(std::get<Wait>(delivered_[0]).reason,
            "no rendezvous service answers at n17:20812 to n17:20814 yet: n17:20812: it refused "
            "this node: its key is another one");
}

TEST_F(AgentLinkOfAPlace, APeerThatSpeaksTheProtocolGetsTheUsualTime) {
  take(link_->connected(now_));
  EXPECT_EQ(link_->deadline(), now_ + AgentLink::kSeekTime);
  pass(seconds(1), false);
  take(link_->heard(now_));
  EXPECT_EQ(link_->deadline(), now_ + seconds(3));
  pass(seconds(1), false);
  take(link_->heard(now_));
  EXPECT_EQ(link_->deadline(), now_ + seconds(2)) << "only once";
}

TEST_F(AgentLinkOfAPlace, TheServiceOfItsOwnJobMayRefuseIt) {
  take(link_->connected(now_));
  const LinkActions actions = link_->received(Refused{"node rank 1 is taken", true}, now_);
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(std::get<ServiceRefused>(actions[1]).reason,
            "the rendezvous service at n17:20812 refused this node: node rank 1 is taken");
  EXPECT_FALSE(link_->deadline());
}

TEST_F(AgentLinkOfAPlace, StaysWhereItWasWelcomed) {
  refuse();
  take(link_->connected(now_));
  take(link_->received(welcome_, now_));
  take(link_->disconnected("reset", now_));
  for (int i = 0; i < 3; ++i) {
    next_try();
    refuse();
  }
  EXPECT_EQ(places_, (std::vector<std::size_t>{0, 1, 1, 1, 1}));
}

TEST_F(AgentLinkOfAPlace, AFailedLookUpSaysNothingAboutAPlace) {
  SetUp();
  name_service_answers_ = false;
  for (int i = 0; i < 3; ++i) refuse();
  const int before = look_ups_;
  for (int i = 0; i < 100 && look_ups_ == before; ++i) pass(milliseconds(100), false);
  take(link_->disconnected("no such host", now_));
  name_service_answers_ = true;
  next_try();
  EXPECT_EQ(places_.back(), 0u);
}

TEST_F(AgentLinkOfAPlace, NamesAllPlacesAndWhatItFoundAtTheJoinTimeout) {
  take(link_->connected(now_));
  take(link_->garbled("bad length", now_));
  while (now_ < TimePoint(seconds(1100)) && link_->deadline()) {
    refuse();
    pass(milliseconds(100), false);
  }
  ASSERT_EQ(lost_count_, 1);
  EXPECT_EQ(lost_->code, ExitCode::kJoinTimeout);
  EXPECT_EQ(lost_->reason,
            "no rendezvous service answered at n17:20812 to n17:20814 within 60.0 s "
            "(--rdzv-conf=join_timeout): n17:20812: not a rendezvous service (bad length)");
}

}  // namespace
}  // namespace ddprun
