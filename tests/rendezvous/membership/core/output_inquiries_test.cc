#include "rendezvous/membership/core/output_inquiries.h"

#include <gmock/gmock.h>

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr AgentConnectionId kReader{100};

class OutputInquiriesTest : public testing::Test {
 protected:
  static OutputInquiries::Node node(const std::string& name, bool is_connected = true,
                                    bool supports_output = true) {
    return {name, "host-" + name, is_connected, supports_output, supports_output};
  }
  static UserRequest request(bool follow) {
    return {
        .what = UserRequest::What::kLogs, .number = 7, .job = "j", .lines = 5, .follow = follow};
  }
  void begin(const std::vector<OutputInquiries::Node>& nodes, bool follow = false) {
    take(inquiries_.begin(kReader, "j", request(follow), nodes, now_));
  }
  void send_page(const std::string& agent, OutputPage page) {
    if (page.inquiry == 0) page.inquiry = 1;
    take(inquiries_.handle_page(agent, std::move(page), now_));
  }
  void drain() { take(inquiries_.reader_has_room(kReader, now_)); }
  void end_job() {
    take(inquiries_.job_ended("j", Verdict{.success = true, .headline = "well"}, 12, now_));
  }
  void pass(Duration time) {
    const TimePoint until = now_ + time;
    while (inquiries_.deadline() && *inquiries_.deadline() <= until) {
      now_ = *inquiries_.deadline();
      take(inquiries_.tick(now_));
    }
    now_ = until;
  }
  void take(InquiryOutput out) {
    for (const ToAgent& one : out.directives) {
      last_directive_ = std::get<OutputDirective>(one.message);
      requests_.push_back(one.agent_id + " " +
                          std::string(enum_name(kOutputDirectiveWords, last_directive_.what)));
    }
    for (InquiryOutput::Send& one : out.sends) {
      EXPECT_EQ(one.connection, kReader);
      EXPECT_FALSE(is_over_) << "nothing comes after the last word";
      is_over_ = one.last;
      if (const Answer* answer = std::get_if<Answer>(&one.message)) {
        EXPECT_EQ(answer->number, 7u);
        EXPECT_EQ(answer->more, !one.last);
        read_ += answer->page;
        if (!answer->text.empty()) news_.push_back(answer->text);
        last_answer_ = *answer;
      } else {
        last_word_ = std::move(one);
      }
    }
  }
  std::vector<std::string> take_requests() { return std::exchange(requests_, {}); }

  TimePoint now_{seconds(1000)};
  OutputInquiries inquiries_;
  std::vector<std::string> requests_;
  OutputDirective last_directive_;
  std::string read_;
  std::vector<std::string> news_;
  Answer last_answer_;
  InquiryOutput::Send last_word_;
  bool is_over_ = false;
};

TEST_F(OutputInquiriesTest, AsksEachNodeAndGivesEachItsTurn) {
  begin({node("a"), node("b")});
  EXPECT_TRUE(last_answer_.done && last_answer_.more) << "it is accepted at once";
  EXPECT_THAT(take_requests(), ElementsAre("a begin", "b begin"));
  EXPECT_EQ(last_directive_, (OutputDirective{.inquiry = 1, .lines = 5}));
  send_page("b", {.is_ready = true});
  EXPECT_THAT(take_requests(), ElementsAre("b next"));
  send_page("a", {.is_last = true});
  send_page("b", {.lines = "1\n", .is_ready = true});
  EXPECT_THAT(take_requests(), ElementsAre("b next"));
  EXPECT_FALSE(is_over_);
  send_page("b", {.lines = "2\n", .is_last = true});
  EXPECT_EQ(read_, "1\n2\n");
  EXPECT_TRUE(is_over_ && last_answer_.done);
  EXPECT_THAT(news_, IsEmpty());
  EXPECT_FALSE(inquiries_.is_reader(kReader));
  EXPECT_THAT(take_requests(), IsEmpty());
}

TEST_F(OutputInquiriesTest, NamesThoseWhoDoNotAnswerInTimeAndShowsTheOthers) {
  begin({node("a"), node("b"), node("c")});
  send_page("a", {.is_ready = true});
  pass(seconds(1));
  send_page("b", {.is_ready = true});
  send_page("b", {.lines = "b\n", .is_last = true});
  pass(OutputInquiries::kAgentPatience);
  EXPECT_EQ(read_, "b\n");
  ASSERT_EQ(news_.size(), 1u) << "both are late at once";
  EXPECT_THAT(news_[0], HasSubstr("no answer within 3.0 s from host-a, host-c"));
  EXPECT_TRUE(is_over_ && last_answer_.done);
  take_requests();
  send_page("a", {.lines = "late\n", .is_ready = true});
  EXPECT_THAT(take_requests(), ElementsAre("a end")) << "nobody wants it any more";
}

TEST_F(OutputInquiriesTest, SaysWhenNobodyHasAnswered) {
  begin({node("a"), node("b", false), node("c", true, false)});
  EXPECT_THAT(take_requests(), ElementsAre("a begin"));
  ASSERT_EQ(news_.size(), 2u);
  EXPECT_THAT(news_[0], HasSubstr("cannot reach: host-b"));
  EXPECT_THAT(news_[1], HasSubstr("too old to send it: ddprun on host-c"));
  pass(seconds(3));
  EXPECT_TRUE(is_over_);
  EXPECT_FALSE(last_answer_.done);
  EXPECT_EQ(last_answer_.text, "no node of job 'j' has sent its output");
  EXPECT_THAT(take_requests(), ElementsAre("a end"));
}

TEST_F(OutputInquiriesTest, FlightRecordsAreAskedOfThoseWhoKnowOfThem) {
  UserRequest asked = request(false);
  asked.what = UserRequest::What::kFlight;
  OutputInquiries::Node old = node("b");
  old.supports_flight = false;
  take(inquiries_.begin(kReader, "j", asked, {node("a"), old}, now_));
  EXPECT_THAT(take_requests(), ElementsAre("a begin"));
  EXPECT_TRUE(last_directive_.flight);
  ASSERT_EQ(news_.size(), 1u);
  EXPECT_EQ(news_[0],
            "the flight record of its workers is missing; too old to send it: ddprun on host-b");
  pass(seconds(3));
  EXPECT_THAT(news_[1], HasSubstr("host-a: the flight record of its workers is missing"));
  EXPECT_EQ(last_answer_.text, "no node of job 'j' has sent its flight record");
}

TEST_F(OutputInquiriesTest, StacksAreAskedOfThoseWhoKnowOfThemAndMayComeLate) {
  UserRequest asked = request(false);
  asked.what = UserRequest::What::kStacks;
  OutputInquiries::Node able = node("a");
  able.supports_stacks = true;
  take(inquiries_.begin(kReader, "j", asked, {able, node("b")}, now_));
  EXPECT_THAT(take_requests(), ElementsAre("a begin"));
  EXPECT_TRUE(last_directive_.stacks);
  EXPECT_FALSE(last_directive_.flight);
  ASSERT_EQ(news_.size(), 1u);
  EXPECT_THAT(news_[0], HasSubstr("the stack of its workers is missing; too old"));
  send_page("a", {});
  pass(seconds(30));
  EXPECT_FALSE(is_over_) << "debuggers take their time";
  send_page("a", {.is_ready = true});
  EXPECT_THAT(take_requests(), ElementsAre("a next"));
  send_page("a", {.lines = "{}\n", .is_last = true});
  EXPECT_TRUE(is_over_);
  EXPECT_TRUE(last_answer_.done);
  EXPECT_EQ(read_, "{}\n");
}

TEST_F(OutputInquiriesTest, FollowsUntilTheJobHasEndedAndAllHaveSaidTheirLast) {
  begin({node("a"), node("b")}, true);
  send_page("a", {});
  send_page("b", {});
  pass(std::chrono::hours(48));
  EXPECT_THAT(news_, IsEmpty()) << "who has nothing to tell is not late";
  send_page("a", {.is_ready = true});
  send_page("a", {.lines = "1\n"});
  send_page("a", {.is_ready = true});
  end_job();
  EXPECT_FALSE(is_over_);
  send_page("a", {.lines = "2\n"});
  send_page("a", {.lines = "3\n", .is_last = true});
  EXPECT_FALSE(is_over_);
  send_page("b", {.is_last = true});
  EXPECT_EQ(read_, "1\n2\n3\n");
  ASSERT_TRUE(is_over_);
  EXPECT_EQ(std::get<End>(last_word_.message).verdict.headline, "well");
  EXPECT_EQ(last_word_.after, 12u);
}

TEST_F(OutputInquiriesTest, DoesNotWaitForLongAtTheEndOfAJob) {
  begin({node("a"), node("b")}, true);
  send_page("a", {});
  send_page("b", {});
  end_job();
  take(inquiries_.agent_left("a", now_));
  EXPECT_FALSE(is_over_);
  pass(OutputInquiries::kAgentPatience);
  EXPECT_TRUE(is_over_);
}

TEST_F(OutputInquiriesTest, FollowsNodesThatComeAndThatComeBack) {
  begin({node("a")}, true);
  send_page("a", {});
  take_requests();
  ASSERT_EQ(inquiries_.followed("j").size(), 1u);
  EXPECT_THAT(inquiries_.followed("other"), IsEmpty());
  take(inquiries_.see(1, {node("a"), node("b")}, now_));
  EXPECT_THAT(take_requests(), ElementsAre("b begin"));
  EXPECT_EQ(last_directive_.lines, kMaxLogLines) << "all of it is new";
  send_page("b", {});
  take(inquiries_.agent_gone("a", now_));
  ASSERT_EQ(news_.size(), 1u);
  EXPECT_THAT(news_[0], HasSubstr("the connection with host-a is lost"));
  take(inquiries_.see(1, {node("a"), node("b")}, now_));
  EXPECT_THAT(take_requests(), ElementsAre("a begin"));
  EXPECT_EQ(last_directive_.lines, 0) << "what it keeps was shown";
  take(inquiries_.agent_left("b", now_));
  EXPECT_EQ(news_.size(), 1u) << "nothing of b is missing";
}

TEST_F(OutputInquiriesTest, OneWhoIsLateIsShownFromThenOnWhileItIsFollowed) {
  begin({node("a")}, true);
  pass(seconds(4));
  ASSERT_EQ(news_.size(), 1u);
  take_requests();
  send_page("a", {.is_ready = true});
  EXPECT_THAT(take_requests(), ElementsAre("a next"));
  send_page("a", {.lines = "1\n"});
  EXPECT_EQ(read_, "1\n");
}

// At most kTurns pages wait for a reader, however many nodes there are.
TEST_F(OutputInquiriesTest, NobodyIsGivenATurnForAReaderWhoDoesNotRead) {
  std::vector<OutputInquiries::Node> nodes;
  for (int i = 0; i < 100; ++i) nodes.push_back(node(std::to_string(i)));
  begin(nodes, true);
  take_requests();
  for (int i = 0; i < 100; ++i) send_page(std::to_string(i), {.is_ready = true});
  const std::string page(kOutputPageBytes, 'x');
  std::vector<std::string> turns = take_requests();
  EXPECT_EQ(turns.size(), OutputInquiries::kTurns);
  for (const std::string& one : turns) {
    send_page(one.substr(0, one.find(' ')), {.lines = page, .is_ready = true});
  }
  EXPECT_THAT(take_requests(), IsEmpty());
  EXPECT_EQ(read_.size(), OutputInquiries::kTurns * page.size());
  pass(std::chrono::hours(1));
  EXPECT_THAT(news_, IsEmpty()) << "those who wait for their turn are not late";
  drain();
  turns = take_requests();
  ASSERT_EQ(turns.size(), OutputInquiries::kTurns);
  EXPECT_EQ(turns[0], "4 next") << "those who have waited for longest";
}

TEST_F(OutputInquiriesTest, WhatIsToldWithoutATurnHasABoundAndIsCounted) {
  begin({node("a")}, true);
  const std::string page(300'000, 'x');
  for (int i = 0; i < 10; ++i) send_page("a", {.lines = page});
  EXPECT_EQ(read_.size(), 3 * page.size());
  send_page("a", {.lines = "x"});
  EXPECT_EQ(read_.size(), 3 * page.size())
      << "not before the reader knows that something is missing";
  drain();
  ASSERT_EQ(news_.size(), 1u);
  EXPECT_THAT(news_[0], HasSubstr("about 2100001 bytes of output are missing"));
  send_page("a", {.lines = "y"});
  EXPECT_EQ(read_.back(), 'y');
}

TEST_F(OutputInquiriesTest, IsForgottenWithItsReader) {
  begin({node("a"), node("b")}, true);
  send_page("a", {.is_last = true});
  send_page("b", {.is_ready = true});
  take_requests();
  take(inquiries_.reader_gone(kReader));
  EXPECT_THAT(take_requests(), ElementsAre("b end"));
  EXPECT_FALSE(inquiries_.deadline());
  EXPECT_THAT(inquiries_.readers(), IsEmpty());
}

TEST_F(OutputInquiriesTest, TheirNumberIsLimited) {
  for (std::size_t job = 0; job < OutputInquiries::kOfAll / OutputInquiries::kOfJob; ++job) {
    const std::string id = std::to_string(job);
    for (std::size_t i = 0; i < OutputInquiries::kOfJob; ++i) {
      ASSERT_TRUE(inquiries_.has_room(id));
      const AgentConnectionId reader(1000 * job + i);
      inquiries_.begin(reader, id, request(true), {node("a" + id)}, now_);
    }
    EXPECT_FALSE(inquiries_.has_room(id));
  }
  EXPECT_FALSE(inquiries_.has_room("another"));
  inquiries_.job_gone("3", Silence{"it is not known"});
  EXPECT_TRUE(inquiries_.has_room("another"));
}

// Wrong messages do not affect the other nodes, and cost the table no additional memory.
TEST_F(OutputInquiriesTest, ALiarChangesNothing) {
  begin({node("a"), node("b")});
  send_page("c", {.lines = "not asked\n"});
  send_page("a", {.inquiry = 99, .lines = "not this one\n"});
  EXPECT_EQ(read_, "");
  for (int i = 0; i < 100; ++i) {
    send_page("a", {.is_ready = true});
    send_page("a", {});
    send_page("a", {.is_ready = true});
  }
  send_page("a", {.is_last = true});
  send_page("a", {.lines = "after its last\n", .is_ready = true});
  EXPECT_EQ(read_, "");
  send_page("b", {.is_last = true});
  EXPECT_TRUE(is_over_);
}

}  // namespace
}  // namespace ddprun
