#include "worker_lib/cpu_peers/core/message_matching.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tests/support/test_seed.h"

namespace ddprun {
namespace {

using testing::ElementsAre;

TEST(MessageMatching, AMessageThatFindsNoReceiveWaitsForOne) {
  MessageMatching matching;
  EXPECT_EQ(matching.arrive(10, 1, 7), std::nullopt);
  EXPECT_EQ(matching.post(1, 1, 7), 10u);
}

TEST(MessageMatching, AReceiveThatFindsNoMessageWaitsForOne) {
  MessageMatching matching;
  EXPECT_EQ(matching.post(1, 1, 7), std::nullopt);
  EXPECT_EQ(matching.arrive(10, 1, 7), 1u);
}

TEST(MessageMatching, NeitherAnotherTagNorAnotherSourceWillDo) {
  MessageMatching matching;
  matching.post(1, 1, 7);
  EXPECT_EQ(matching.arrive(10, 1, 8), std::nullopt);
  EXPECT_EQ(matching.arrive(11, 2, 7), std::nullopt);
  EXPECT_EQ(matching.arrive(12, 1, 7), 1u);
}

TEST(MessageMatching, MessagesOfAPairAndTagGoInTheOrderSentToReceivesInTheOrderPosted) {
  MessageMatching matching;
  matching.arrive(10, 1, 7);
  matching.arrive(11, 1, 7);
  EXPECT_EQ(matching.post(1, 1, 7), 10u);
  EXPECT_EQ(matching.post(2, 1, 7), 11u);
  matching.post(3, 1, 7);
  matching.post(4, 1, 7);
  EXPECT_EQ(matching.arrive(12, 1, 7), 3u);
  EXPECT_EQ(matching.arrive(13, 1, 7), 4u);
}

TEST(MessageMatching, TheReceivePostedFirstWinsWhetherItNamesTheSourceOrNot) {
  MessageMatching matching;
  matching.post(1, std::nullopt, 7);
  matching.post(2, 1, 7);
  matching.post(3, std::nullopt, 7);
  EXPECT_EQ(matching.arrive(10, 1, 7), 1u);
  EXPECT_EQ(matching.arrive(11, 1, 7), 2u);
  EXPECT_EQ(matching.arrive(12, 1, 7), 3u);
}

TEST(MessageMatching, ReceivesFromAnySourceTakeTurnsAmongTheSources) {
  MessageMatching matching;
  for (MessageId message = 0; message < 4; ++message) matching.arrive(100 + message, 1, 7);
  matching.arrive(200, 2, 7);
  matching.arrive(300, 5, 7);
  std::vector<MessageId> got;
  for (ReceiveId receive = 0; receive < 6; ++receive)
    got.push_back(*matching.post(receive, std::nullopt, 7));
  EXPECT_THAT(got, ElementsAre(100, 200, 300, 101, 102, 103));
}

// A reference that follows the rules of matching literally, with two lists.
class Naive {
 public:
  std::optional<MessageId> post(ReceiveId receive, std::optional<int> source, int tag) {
    std::set<int> sources;
    for (const Message& message : messages_) {
      if (message.tag == tag && (!source || message.source == *source))
        sources.insert(message.source);
    }
    if (sources.empty()) {
      receives_.push_back({receive, source, tag});
      return std::nullopt;
    }
    const auto next = sources.upper_bound(last_[tag]);
    const int from = source ? *source : next == sources.end() ? *sources.begin() : *next;
    if (!source) last_[tag] = from;
    for (auto message = messages_.begin();; ++message) {
      if (message->tag != tag || message->source != from) continue;
      const MessageId id = message->id;
      messages_.erase(message);
      forget_unless_used(tag);
      return id;
    }
  }

  std::optional<ReceiveId> arrive(MessageId message, int source, int tag) {
    for (auto receive = receives_.begin(); receive != receives_.end(); ++receive) {
      if (receive->tag != tag || (receive->source && *receive->source != source)) continue;
      const ReceiveId id = receive->id;
      if (!receive->source) last_[tag] = source;
      receives_.erase(receive);
      forget_unless_used(tag);
      return id;
    }
    messages_.push_back({message, source, tag});
    return std::nullopt;
  }

 private:
  struct Message {
    MessageId id;
    int source;
    int tag;
  };
  struct Receive {
    ReceiveId id;
    std::optional<int> source;
    int tag;
  };

  void forget_unless_used(int tag) {
    for (const Message& message : messages_)
      if (message.tag == tag) return;
    for (const Receive& receive : receives_)
      if (receive.tag == tag) return;
    last_[tag] = -1;
  }

  struct Last {
    int source = -1;
    operator int() const { return source; }
    Last& operator=(int value) {
      source = value;
      return *this;
    }
  };
  std::vector<Message> messages_;
  std::vector<Receive> receives_;
  std::map<int, Last> last_;
};

TEST(MessageMatching, RandomScriptsGoAsTheNaiveModelSays) {
  const std::uint64_t seed = testing_support::test_seed(11);
  SCOPED_TRACE(testing_support::seed_text(seed));
  Rng rng(seed);
  for (int script = 0; script < 300; ++script) {
    MessageMatching matching;
    Naive naive;
    const double share_of_receives = 0.3 + 0.1 * static_cast<double>(rng.below(5));
    for (std::uint64_t step = 0; step < 200; ++step) {
      const int source = static_cast<int>(rng.below(4));
      const int tag = static_cast<int>(rng.below(3));
      if (rng.chance(share_of_receives)) {
        const auto from = rng.chance(0.4) ? std::nullopt : std::optional<int>(source);
        ASSERT_EQ(matching.post(step, from, tag), naive.post(step, from, tag)) << step;
      } else {
        ASSERT_EQ(matching.arrive(step, source, tag), naive.arrive(step, source, tag)) << step;
      }
    }
  }
}

TEST(MessageCredit, EndsWithItsBytesAndComesBack) {
  MessageCredit credit;
  const std::size_t half = MessageCredit::kBytes / 2 - MessageCredit::kPerMessage;
  EXPECT_TRUE(credit.take_message(half));
  EXPECT_TRUE(credit.take_message(half));
  EXPECT_FALSE(credit.take_message(0));
  credit.give_back(MessageCredit::cost_of(half));
  EXPECT_TRUE(credit.take_message(0));
  EXPECT_FALSE(credit.take_message(half));
}

TEST(MessageCredit, EmptyMessagesAreNotForNothing) {
  MessageCredit credit;
  std::size_t messages = 0;
  while (credit.take_message(0)) ++messages;
  EXPECT_EQ(messages, MessageCredit::kBytes / MessageCredit::kPerMessage);
}

TEST(MessageCredit, CountsHeads) {
  MessageCredit credit;
  for (std::size_t i = 0; i < MessageCredit::kHeads; ++i) ASSERT_TRUE(credit.take_head());
  EXPECT_FALSE(credit.take_head());
  credit.give_head_back();
  EXPECT_TRUE(credit.take_head());
}

}  // namespace
}  // namespace ddprun
