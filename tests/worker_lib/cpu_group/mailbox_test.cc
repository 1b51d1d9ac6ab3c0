// Tests messages between pairs of ranks, which are threads here. faults_test.cc tests them
// between processes that are killed and stopped.
#include "worker_lib/cpu_group/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <tuple>

#include "base/rng.h"
#include "tests/support/eventually.h"
#include "tests/support/test_seed.h"
#include "tests/worker_lib/cpu_group/world.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::kPatience;
using testing_support::seed_text;
using testing_support::test_seed;

using Numbers = std::vector<int>;

// Collects the results of transfers in flight.
class Transfers {
 public:
  // Returns the `done` callback of the next transfer.
  TransferDone next() {
    const std::lock_guard lock(mutex_);
    const std::size_t index = results_.size();
    results_.emplace_back();
    return [this, index](const Result<Rank>& result) {
      const std::lock_guard ending(mutex_);
      EXPECT_FALSE(results_[index]) << "it ends once";
      results_[index] = result;
      ++ended_;
      changed_.notify_all();
    };
  }

  // Waits for all transfers and returns their results. Fails the test if one has not ended in
  // time.
  std::vector<Result<Rank>> wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return ended_ == results_.size(); }));
    std::vector<Result<Rank>> results;
    for (const auto& result : results_) {
      results.push_back(result ? *result : Error{.cause = "it has not ended"});
    }
    return results;
  }

  void expect_all_well() {
    for (const Result<Rank>& result : wait()) EXPECT_TRUE(result) << result.error().message();
  }

  std::size_t ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::optional<Result<Rank>>> results_;
  std::size_t ended_ = 0;
};

// --- messages ---

class CpuGroupMessages : public testing::TestWithParam<const char*> {
 protected:
  EngineWorld world_{GetParam()};

  static Numbers numbers(std::size_t count, int first) {
    Numbers result(count);
    std::iota(result.begin(), result.end(), first);
    return result;
  }
};

class CpuGroupMessagesOfThree : public CpuGroupMessages {};

TEST_P(CpuGroupMessages, ArriveInOrderAndWholeWhateverTheirSize) {
  world_.run([](CpuGroup& group, int rank) {
    for (const std::size_t count : {0, 1, 1000, 65'536, 3'000'001}) {
      Numbers data = numbers(count, static_cast<int>(count));
      const Numbers expected = data;
      if (rank == 0) {
        EXPECT_TRUE(group.send(data.data(), count * 4, Rank(1), 0, kPatience));
      } else if (rank == 1) {
        std::fill(data.begin(), data.end(), 0);
        EXPECT_TRUE(group.recv(data.data(), count * 4, Rank(0), 0, kPatience));
        EXPECT_TRUE(data == expected) << count;
      }
    }
  });
}

TEST_P(CpuGroupMessages, AreMatchedByTagAndKeepTheirOrderWithinOne) {
  world_.run([](CpuGroup& group, int rank) {
    if (rank == 0) {
      for (const auto& [tag, value] : {std::pair{7, 70}, {8, 80}, {7, 71}, {9, 90}}) {
        EXPECT_TRUE(group.send(&value, 4, Rank(1), tag, kPatience));
      }
    } else if (rank == 1) {
      for (const auto& [tag, value] : {std::pair{9, 90}, {7, 70}, {8, 80}, {7, 71}}) {
        int got = 0;
        EXPECT_TRUE(group.recv(&got, 4, Rank(0), tag, kPatience));
        EXPECT_EQ(got, value);
      }
    }
  });
}

TEST_P(CpuGroupMessages, OfAllPairsAndBothDirectionsDoNotMix) {
  world_.run([](CpuGroup& group, int rank) {
    for (int distance = 1; distance < group.size(); ++distance) {
      const int to = (rank + distance) % group.size();
      const int from = (rank + group.size() - distance) % group.size();
      const Numbers mine = numbers(2000, 10'000 * rank + to);
      Numbers got(2000);
      EXPECT_TRUE(group.send(mine.data(), 8000, Rank(to), distance, kPatience));
      EXPECT_TRUE(group.recv(got.data(), 8000, Rank(from), distance, kPatience));
      EXPECT_EQ(got, numbers(2000, 10'000 * from + rank));
      EXPECT_TRUE(group.barrier(kPatience));
    }
  });
}

TEST_P(CpuGroupMessages, LargeOnesGoBothWaysWhenOneSideReceivesFirst) {
  world_.run([](CpuGroup& group, int rank) {
    if (rank > 1) return;
    const std::size_t count = 2'000'000;
    const Numbers mine = numbers(count, rank);
    Numbers got(count);
    const Rank other(1 - rank);
    if (rank == 0) {
      EXPECT_TRUE(group.send(mine.data(), count * 4, other, 1, kPatience));
    }
    EXPECT_TRUE(group.recv(got.data(), count * 4, other, 1, kPatience));
    if (rank == 1) {
      EXPECT_TRUE(group.send(mine.data(), count * 4, other, 1, kPatience));
    }
    EXPECT_TRUE(got == numbers(count, 1 - rank));
  });
}

TEST_P(CpuGroupMessages, OfAnotherSizeAreRefusedAndDroppedAndTheGroupGoesOn) {
  world_.run([](CpuGroup& group, int rank) {
    const int values[4] = {1, 2, 3, 4};
    int got[4] = {};
    if (rank == 0) {
      EXPECT_TRUE(group.send(values, 16, Rank(1), 0, kPatience));
      EXPECT_TRUE(group.send(values, 8, Rank(1), 3, kPatience));
      EXPECT_TRUE(group.send(values, 4, Rank(1), 0, kPatience));
    } else if (rank == 1) {
      const Error error = group.recv(got, 12, Rank(0), 0, kPatience).error();
      EXPECT_EQ(error.kind, ErrorKind::kInvalidArgument);
      EXPECT_EQ(error.message(), "recv of 12 B from rank 0 (tag 0): the message has 16 B");
      EXPECT_TRUE(group.recv(got, 4, Rank(0), 0, kPatience));
      EXPECT_EQ(got[0], 1);
      EXPECT_EQ(group.recv(got, 4, Rank(0), 3, kPatience).error().message(),
                "recv of 4 B from rank 0 (tag 3): the message has 8 B");
    }
    EXPECT_TRUE(group.barrier(kPatience));
  });
}

TEST_P(CpuGroupMessages, ThatDoNotComeEndInATimeoutThatNamesTheSender) {
  world_.run([](CpuGroup& group, int rank) {
    if (rank != 1) return;
    int got = 0;
    const Error error = group.recv(&got, 4, Rank(0), 2, milliseconds(50)).error();
    EXPECT_EQ(error.kind, ErrorKind::kTimeout);
    EXPECT_THAT(error.message(),
                HasSubstr("recv of 4 B from rank 0 (tag 2): rank 0 did not send it (waited "));
  });
}

TEST(CpuGroupTimeout, DoesNotBlameARankThatHasLeftInGoodOrder) {
  EngineWorld world("abc");
  world.run([&](CpuGroup& group, int rank) {
    if (rank == 2) return world.destroy(2);
    if (rank != 0) return;
    int got = 0;
    const auto recv = [&] { return group.recv(&got, 4, Rank(1), 0, milliseconds(50)).error(); };
    const Error error = recv();
    EXPECT_EQ(error.kind, ErrorKind::kTimeout);
    EXPECT_EQ(error.peer_rank, 1) << error.message();
    EXPECT_THAT(error.message(), Not(HasSubstr("does not answer")));
  });
}

TEST_P(CpuGroupMessages, FromARankThatHasLeftCountIfTheyWereSent) {
  world_.run([&](CpuGroup& group, int rank) {
    int value = 42;
    if (rank == 0) {
      EXPECT_TRUE(group.send(&value, 4, Rank(1), 0, kPatience));
      world_.destroy(0);
    } else if (rank == 1) {
      EXPECT_TRUE(group.recv(&value, 4, Rank(0), 0, kPatience));
      const Error error = group.recv(&value, 4, Rank(0), 0, kPatience).error();
      EXPECT_EQ(error.kind, ErrorKind::kPeerLost);
      EXPECT_EQ(error.peer_rank, 0);
    }
  });
}

// A node has three ranks. Each has links to two ranks of the other node.
TEST(CpuGroupMessagesBetweenNodes, OfARankThatHasLeftAreAwaitedByNobody) {
  for (const int leaver : {3, 4, 5}) {
    EngineWorld world("aaabbb");
    world.destroy(leaver);
    int value = 0;
    const Error error = world.group(0).recv(&value, 4, Rank(leaver), 0, kPatience).error();
    EXPECT_EQ(error.kind, ErrorKind::kPeerLost) << error.message();
    EXPECT_EQ(error.peer_rank, leaver);
    EXPECT_THAT(error.message(), HasSubstr(" has left the group"));
  }
}

// --- in flight ---

TEST_P(CpuGroupMessages, LargeOnesGoBothWaysWhenBothSidesSendFirst) {
  world_.run([](CpuGroup& group, int rank) {
    if (rank > 1) return;
    const std::size_t count = 2'000'000;
    const Numbers mine = numbers(count, rank);
    Numbers got(count);
    Transfers transfers;
    group.start_send(mine.data(), count * 4, Rank(1 - rank), 1, kPatience, transfers.next());
    EXPECT_TRUE(group.recv(got.data(), count * 4, Rank(1 - rank), 1, kPatience));
    transfers.expect_all_well();
    EXPECT_TRUE(got == numbers(count, 1 - rank));
  });
}

TEST_P(CpuGroupMessages, ThatAreAwaitedDelayNeitherCollectivesNorOtherTags) {
  world_.run([](CpuGroup& group, int rank) {
    if (rank > 1) {
      for (int round = 0; round < 4; ++round) EXPECT_TRUE(group.barrier(kPatience));
      return;
    }
    const Rank other(1 - rank);
    const std::size_t count = 300'000;
    const Numbers mine = numbers(count, rank);
    Numbers awaited(count), got(count);
    Transfers transfers;
    group.start_recv(awaited.data(), count * 4, other, 1, kPatience, transfers.next());
    for (int round = 0; round < 3; ++round) {
      EXPECT_TRUE(group.barrier(kPatience));
      Transfers sending;
      group.start_send(mine.data(), count * 4, other, 2, kPatience, sending.next());
      EXPECT_TRUE(group.recv(got.data(), count * 4, other, 2, kPatience));
      EXPECT_TRUE(got == numbers(count, 1 - rank));
      sending.expect_all_well();
      EXPECT_EQ(transfers.ended(), 0u);
    }
    EXPECT_TRUE(group.barrier(kPatience));
    EXPECT_TRUE(group.send(mine.data(), count * 4, other, 1, kPatience));
    transfers.expect_all_well();
    EXPECT_TRUE(awaited == numbers(count, 1 - rank));
  });
}

TEST_P(CpuGroupMessagesOfThree, ToOneRankDoNotWaitForThoseToAnother) {
  std::atomic<bool> has_come = false;
  world_.run([&](CpuGroup& group, int rank) {
    const std::size_t bytes = 3'000'000;
    std::vector<char> data(bytes, 'x');
    Transfers transfers;
    if (rank == 0) {
      group.start_send(data.data(), bytes, Rank(1), 0, kPatience, transfers.next());
      EXPECT_TRUE(group.send(data.data(), bytes, Rank(2), 0, kPatience));
      EXPECT_EQ(transfers.ended(), 0u) << "rank 1 has not asked for it";
      has_come = true;
    } else if (rank == 1) {
      ASSERT_TRUE(testing_support::eventually([&] { return has_come.load(); }));
      EXPECT_TRUE(group.recv(data.data(), bytes, Rank(0), 0, kPatience));
    } else {
      EXPECT_TRUE(group.recv(data.data(), bytes, Rank(0), 0, kPatience));
    }
    transfers.expect_all_well();
  });
}

TEST_P(CpuGroupMessages, ReceivesOfOneTagGetThemInTheOrderPosted) {
  world_.run([](CpuGroup& group, int rank) {
    if (rank > 1) return;
    // The sizes lie on both sides of the largest eager message.
    const std::size_t counts[] = {1, 100'000, 0, 16'000, 17'000, 2};
    std::vector<Numbers> data;
    for (const std::size_t count : counts) data.push_back(numbers(rank == 0 ? count : 0, 7));
    Transfers transfers;
    for (std::size_t i = 0; i < data.size(); ++i) {
      data[i].resize(counts[i]);
      if (rank == 0) {
        group.start_send(data[i].data(), counts[i] * 4, Rank(1), 3, kPatience, transfers.next());
      } else {
        group.start_recv(data[i].data(), counts[i] * 4, Rank(0), 3, kPatience, transfers.next());
      }
    }
    transfers.expect_all_well();
    for (std::size_t i = 0; i < data.size(); ++i)
      EXPECT_TRUE(data[i] == numbers(counts[i], 7)) << i;
  });
}

TEST_P(CpuGroupMessages, OfAnotherSizeThanTheReceiveOnlyEndThatReceive) {
  world_.run([](CpuGroup& group, int rank) {
    const std::size_t large = 400'000;
    Numbers data = numbers(large, 1);
    Transfers transfers;
    if (rank != 1) {
      EXPECT_TRUE(group.barrier(kPatience));
    }
    if (rank > 1) return;
    if (rank == 0) {
      for (const std::size_t bytes : {large, std::size_t{12}, large, std::size_t{8}})
        group.start_send(data.data(), bytes, Rank(1), 0, kPatience, transfers.next());
      transfers.expect_all_well();
      return;
    }
    Numbers got(large);
    for (const std::size_t bytes : {large - 4, std::size_t{16}, large, std::size_t{8}})
      group.start_recv(got.data(), bytes, std::nullopt, 0, kPatience, transfers.next());
    EXPECT_TRUE(group.barrier(kPatience));  // the receives have been posted
    const auto results = transfers.wait();
    EXPECT_EQ(results[0].error().message(),
              "recv of 399996 B from any rank (tag 0): the message of rank 0 has 400000 B");
    EXPECT_EQ(results[1].error().kind, ErrorKind::kInvalidArgument);
    EXPECT_TRUE(results[2]);
    EXPECT_TRUE(results[3]);
  });
}

// --- from any source ---

TEST_P(CpuGroupMessagesOfThree, FromAnySourceSayWhoseTheyAreAndTakeTurns) {
  world_.run([](CpuGroup& group, int rank) {
    constexpr int kMany = 40;
    if (rank == 0) {
      char end = 0;
      // Messages that came before these have been set aside.
      EXPECT_TRUE(group.recv(&end, 1, Rank(1), 9, kPatience));
      EXPECT_TRUE(group.recv(&end, 1, Rank(2), 9, kPatience));
      std::vector<int> sources;
      for (int i = 0; i < kMany + 2; ++i) {
        int got = -1;
        const Result<Rank> source = group.recv(&got, 4, std::nullopt, 5, kPatience);
        ASSERT_TRUE(source) << source.error().message();
        EXPECT_EQ(got / 1000, source->value);
        sources.push_back(source->value);
      }
      sources.resize(5);
      EXPECT_THAT(sources, ElementsAre(1, 2, 1, 2, 1));
      return;
    }
    for (int i = 0; i < (rank == 1 ? kMany : 2); ++i) {
      const int value = 1000 * rank + i;
      EXPECT_TRUE(group.send(&value, 4, Rank(0), 5, kPatience));
    }
    EXPECT_TRUE(group.send("", 1, Rank(0), 9, kPatience));
  });
}

TEST_P(CpuGroupMessages, FromAnySourceMayBeLarge) {
  world_.run([](CpuGroup& group, int rank) {
    const std::size_t count = 500'000;
    if (rank > 0) {
      const Numbers mine = numbers(count, rank);
      EXPECT_TRUE(group.send(mine.data(), count * 4, Rank(0), 5, kPatience));
      return;
    }
    for (int i = 1; i < group.size(); ++i) {
      Numbers got(count);
      const Result<Rank> source = group.recv(got.data(), count * 4, std::nullopt, 5, kPatience);
      ASSERT_TRUE(source) << source.error().message();
      EXPECT_TRUE(got == numbers(count, source->value));
    }
  });
}

// --- bounds ---

TEST_P(CpuGroupMessages, ThatNobodyReceivesStayWithTheirSenderAndDoNotStopOthers) {
  world_.run([](CpuGroup& group, int rank) {
    constexpr std::size_t kCount = 8'000, kMessages = 500;
    if (rank == 0) {
      std::vector<Numbers> flood;
      Transfers transfers;
      for (std::size_t i = 0; i < kMessages; ++i) {
        flood.push_back(numbers(kCount, static_cast<int>(i)));
        group.start_send(flood.back().data(), kCount * 4, Rank(1), 1, kPatience, transfers.next());
      }
      const int value = 42;
      EXPECT_TRUE(group.send(&value, 4, Rank(1), 2, kPatience));
      char end = 0;
      EXPECT_TRUE(group.recv(&end, 1, Rank(1), 3, kPatience));
      EXPECT_LE(transfers.ended(), MessageCredit::kBytes / (kCount * 4));
      EXPECT_TRUE(group.send(&end, 1, Rank(1), 3, kPatience));
      transfers.expect_all_well();
    } else if (rank == 1) {
      int got = 0;
      char end = 0;
      EXPECT_TRUE(group.recv(&got, 4, Rank(0), 2, kPatience));
      EXPECT_EQ(got, 42);
      EXPECT_TRUE(group.send(&end, 1, Rank(0), 3, kPatience));
      EXPECT_TRUE(group.recv(&end, 1, Rank(0), 3, kPatience));
      for (std::size_t i = 0; i < kMessages; ++i) {
        Numbers one(kCount);
        ASSERT_TRUE(group.recv(one.data(), kCount * 4, Rank(0), 1, kPatience));
        ASSERT_TRUE(one == numbers(kCount, static_cast<int>(i))) << i;
      }
    }
  });
}

// --- ends ---

TEST_P(CpuGroupMessages, OfWhichNoneComesFromAnySourceEndInATimeoutThatSaysSo) {
  world_.run([](CpuGroup& group, int rank) {
    if (rank != 0) return;
    int got = 0;
    Transfers transfers;
    group.start_recv(&got, 4, std::nullopt, 2, milliseconds(50), transfers.next());
    const Error error = transfers.wait()[0].error();
    EXPECT_EQ(error.kind, ErrorKind::kTimeout);
    EXPECT_EQ(error.peer_rank, -1);
    EXPECT_THAT(error.message(),
                HasSubstr("recv of 4 B from any rank (tag 2): no rank has sent it (waited "));
  });
}

TEST_P(CpuGroupMessages, ThatAreNotReceivedEndInATimeoutThatNamesTheReceiver) {
  world_.run([](CpuGroup& group, int rank) {
    if (rank != 0) return;
    const std::vector<char> data(5'000'000);
    Transfers transfers;
    group.start_send(data.data(), data.size(), Rank(1), 2, milliseconds(50), transfers.next());
    int got = 0;
    group.start_recv(&got, 4, std::nullopt, 7, kPatience, transfers.next());
    const auto results = transfers.wait();
    EXPECT_EQ(results[0].error().kind, ErrorKind::kTimeout);
    EXPECT_EQ(results[0].error().peer_rank, 1);
    EXPECT_THAT(
        results[0].error().message(),
        HasSubstr("send of 5000000 B to rank 1 (tag 2): rank 1 did not receive it (waited "));
    EXPECT_EQ(results[1].error().kind, ErrorKind::kTimeout);
    EXPECT_THAT(results[1].error().message(), HasSubstr("rank 1 did not receive it"));
    const Error later = group.send(&got, 4, Rank(1), 0, kPatience).error();
    EXPECT_EQ(later.kind, ErrorKind::kStopped);
  });
}

TEST_P(CpuGroupMessages, InFlightEndWhenTheGroupIsAborted) {
  world_.run([](CpuGroup& group, int rank) {
    std::vector<char> data(1'000'000);
    Transfers transfers;
    const Rank other(rank == 0 ? 1 : 0);
    group.start_recv(data.data(), 4, other, 1, kPatience, transfers.next());
    group.start_recv(data.data() + 8, 4, std::nullopt, 2, kPatience, transfers.next());
    group.start_send(data.data(), data.size(), other, 3, kPatience, transfers.next());
    if (rank == 1) group.abort("enough");
    for (const Result<Rank>& result : transfers.wait()) {
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().kind, ErrorKind::kStopped);
      EXPECT_THAT(result.error().message(), AnyOf(HasSubstr("the group was aborted: enough"),
                                                  HasSubstr("rank 1 aborted the group: enough")));
    }
  });
}

TEST_P(CpuGroupMessages, InFlightEndWithTheirGroupAndAllRanksLearnOfIt) {
  world_.run([&](CpuGroup& group, int rank) {
    std::vector<char> data(1'000'000);
    Transfers transfers;
    if (rank == 0) {
      group.start_send(data.data(), data.size(), Rank(1), 1, kPatience, transfers.next());
      group.start_recv(data.data(), 4, std::nullopt, 2, kPatience, transfers.next());
      world_.destroy(0);
      EXPECT_EQ(transfers.ended(), 2u);
      for (const Result<Rank>& result : transfers.wait())
        EXPECT_EQ(result.error().kind, ErrorKind::kStopped);
      return;
    }
    group.start_recv(data.data(), 4, Rank(0), 9, kPatience, transfers.next());
    EXPECT_THAT(transfers.wait()[0].error().message(), HasSubstr("rank 0 has left the group"));
  });
}

// Lets two receives end at the same time on rank 0. The callback of one waits for that of the
// other.
void let_a_callback_wait_for_another(CpuGroup& group, int rank) {
  int first = 1, second = 2;
  Transfers transfers;
  std::promise<void> is_second_over;
  if (rank == 0) {
    group.start_recv(&first, 4, Rank(1), 1, kPatience,
                     [&, done = transfers.next()](const Result<Rank>& received) {
                       EXPECT_EQ(is_second_over.get_future().wait_for(seconds(10)),
                                 std::future_status::ready);
                       done(received);
                     });
    group.start_recv(&second, 4, Rank(1), 2, kPatience,
                     [&, done = transfers.next()](const Result<Rank>& received) {
                       is_second_over.set_value();
                       done(received);
                     });
  }
  EXPECT_TRUE(group.barrier(kPatience));
  if (rank == 1) {
    group.start_send(&first, 4, Rank(0), 1, kPatience, transfers.next());
    group.start_send(&second, 4, Rank(0), 2, kPatience, transfers.next());
  }
  transfers.expect_all_well();
}

// The mailbox then has two threads: one watches the callback, the other waits.
TEST_P(CpuGroupMessages, EndWithTheirGroupAlsoWhereACallbackTakesItsTime) {
  world_.run([&](CpuGroup& group, int rank) {
    let_a_callback_wait_for_another(group, rank);
    if (rank != 0) return;
    int data = 0;
    Transfers transfers;
    for (const int tag : {3, 4}) {
      group.start_recv(&data, 4, Rank(1), tag, kPatience,
                       [done = transfers.next()](const Result<Rank>& received) {
                         std::promise<void>().get_future().wait_for(milliseconds(20));
                         done(received);
                       });
    }
    world_.destroy(0);
    EXPECT_EQ(transfers.ended(), 2u);
  });
}

TEST_P(CpuGroupMessages, ThatWereIssuedCanBeWaitedForBeforeTheirSenderLeaves) {
  world_.run([&](CpuGroup& group, int rank) {
    std::vector<char> data(1'000'000, rank == 0 ? 'x' : '\0');
    char go = 0;
    if (rank == 0) {
      Transfers transfers;
      group.start_send(data.data(), data.size(), Rank(1), 1, kPatience, transfers.next());
      EXPECT_FALSE(group.await_messages(milliseconds(1))) << "nobody has asked for it";
      EXPECT_TRUE(group.send(&go, 1, Rank(1), 2, kPatience));
      EXPECT_TRUE(group.await_messages(kPatience));
      transfers.expect_all_well();
      return world_.destroy(0);
    }
    if (rank != 1) return;
    EXPECT_TRUE(group.recv(&go, 1, Rank(0), 2, kPatience));
    EXPECT_TRUE(group.recv(data.data(), data.size(), Rank(0), 1, kPatience));
    EXPECT_EQ(std::ranges::count(data, 'x'), std::ssize(data));
  });
}

TEST_P(CpuGroupMessages, MayBeWaitedForByWhoIsCalledBackForAnother) {
  world_.run([](CpuGroup& group, int rank) {
    if (rank == 1) {
      const int one = 1, two = 2;
      EXPECT_TRUE(group.send(&one, 4, Rank(0), 1, kPatience));
      EXPECT_TRUE(group.send(&two, 4, Rank(0), 2, kPatience));
    }
    if (rank != 0) return;
    int first = 0, second = 0, third = 0;
    Transfers transfers;
    group.start_recv(&first, 4, Rank(1), 1, kPatience,
                     [&, done = transfers.next()](const Result<Rank>&) {
                       done(group.recv(&second, 4, Rank(1), 2, milliseconds(5000)));
                     });
    // Another thread drives the transfers, or waits for the thread that runs the callback.
    EXPECT_EQ(group.recv(&third, 4, Rank(1), 3, seconds(1)).error().kind, ErrorKind::kTimeout);
    transfers.expect_all_well();
    EXPECT_EQ(first + second, 3);
  });
}

// Receives message `tag` of rank 1. Its callback receives the next one, and so on up to
// `last`.
Result<Rank> receive_in_callbacks(CpuGroup& group, int tag, int last) {
  struct Receive {
    int value = 0;
    std::promise<Result<Rank>> ended;
  };
  const auto receive = std::make_shared<Receive>();
  auto result = receive->ended.get_future();
  group.start_recv(
      &receive->value, 4, Rank(1), tag, seconds(10),
      [receive, &group, tag, last](const Result<Rank>& received) {
        const bool is_last = tag == last || !received;
        receive->ended.set_value(is_last ? received : receive_in_callbacks(group, tag + 1, last));
      });
  EXPECT_TRUE(group.send(&tag, 4, Rank(1), 0, kPatience)) << "rank 1 sends message `tag` now";
  if (result.wait_for(seconds(20)) == std::future_status::ready) return result.get();
  return Error{.cause = "no thread receives message " + std::to_string(tag)};
}

TEST_P(CpuGroupMessages, MayBeStartedAndWaitedForByWhoIsCalledBackForAnother) {
  constexpr int kDepth = 5;
  world_.run([](CpuGroup& group, int rank) {
    if (rank == 0) {
      const Result<Rank> received = receive_in_callbacks(group, 1, kDepth);
      EXPECT_TRUE(received) << received.error().message();
    }
    for (int tag = 0; rank == 1 && tag < kDepth;) {
      ASSERT_TRUE(group.recv(&tag, 4, Rank(0), 0, kPatience));
      EXPECT_TRUE(group.send(&tag, 4, Rank(0), tag, kPatience));
    }
  });
}

// Both receives may end in one pass of the driver.
TEST_P(CpuGroupMessages, MayBeAwaitedInCallbacksOfOthersThatEndAtTheSameTime) {
  constexpr int kRounds = 100;
  world_.run([](CpuGroup& group, int rank) {
    for (int round = 0; round < kRounds; ++round) {
      let_a_callback_wait_for_another(group, rank);
      ASSERT_FALSE(testing::Test::HasFailure());
    }
  });
}

TEST_P(CpuGroupMessages, EndTheGroupWhenWhatTheyCallAtTheEndThrows) {
  world_.run([](CpuGroup& group, int rank) {
    int value = 0;
    const auto next = [&] { return group.recv(&value, 4, Rank(1 - rank), 2, kPatience).error(); };
    if (rank == 1) {
      EXPECT_TRUE(group.send(&value, 4, Rank(0), 1, kPatience));
      EXPECT_THAT(next().message(), HasSubstr("threw: not this one"));
    }
    if (rank != 0) return;
    Transfers transfers;
    group.start_recv(&value, 4, Rank(1), 1, kPatience,
                     [done = transfers.next()](const Result<Rank>& result) {
                       done(result);
                       throw std::runtime_error("not this one");
                     });
    transfers.expect_all_well();
    EXPECT_THAT(next().message(), HasSubstr("threw: not this one"));
  });
}

// The first receive that fails ends the group, and with it what others still call.
TEST_P(CpuGroupMessages, AwaitedFromARankThatLeavesEndNamingIt) {
  std::latch receiving(world_.size() - 1);
  world_.run([&](CpuGroup& group, int rank) {
    if (rank == 0) {
      receiving.wait();
      return world_.destroy(0);
    }
    char data[4] = {};
    Transfers transfers;
    group.start_recv(data, 4, Rank(0), 1, kPatience, transfers.next());
    receiving.count_down();
    const Error error = transfers.wait()[0].error();
    EXPECT_EQ(error.kind, ErrorKind::kPeerLost);
    EXPECT_EQ(error.peer_rank, 0);
    EXPECT_THAT(error.message(), HasSubstr("rank 0 has left the group"));
  });
}

TEST_P(CpuGroupMessages, AwaitedFromAnySourceOutlastAllButTheLastOther) {
  world_.run([&](CpuGroup& group, int rank) {
    const int value = rank;
    if (rank != 0) {
      EXPECT_TRUE(group.send(&value, 4, Rank(0), 1, kPatience));
      return world_.destroy(rank);
    }
    int got = 0;
    for (int i = 1; i < group.size(); ++i)
      EXPECT_TRUE(group.recv(&got, 4, std::nullopt, 1, kPatience));
    const Error error = group.recv(&got, 4, std::nullopt, 1, kPatience).error();
    EXPECT_EQ(error.kind, ErrorKind::kPeerLost);
    EXPECT_THAT(error.message(), HasSubstr("all other ranks have left the group"));
  });
}

// --- everything at once ---

// A random plan of messages. Every rank draws the same one. The k-th message of a pair and tag
// has its own contents. Tags from kAnyTags on are received from any source; each has one size.
class RandomMessages {
 public:
  static constexpr int kTags = 4, kAnyTags = 3;

  struct One {
    int from, to, tag;
    std::size_t bytes;
    int number;  // counts the messages of this pair and tag
  };

  RandomMessages(std::uint64_t seed, int ranks, int count) {
    Rng rng(seed);
    std::map<std::tuple<int, int, int>, int> numbers;
    for (int i = 0; i < count; ++i) {
      One one{};
      one.from = static_cast<int>(rng.below(static_cast<std::uint64_t>(ranks)));
      one.to = (one.from + 1 + static_cast<int>(rng.below(static_cast<std::uint64_t>(ranks) - 1))) %
               ranks;
      one.tag = static_cast<int>(rng.below(kTags));
      const std::uint64_t sizes[] = {0, rng.below(100), rng.below(70'000), rng.below(600'000)};
      one.bytes = one.tag >= kAnyTags ? 90'000 : sizes[rng.below(4)];
      one.number = numbers[{one.from, one.to, one.tag}]++;
      all_.push_back(one);
    }
  }

  template <class Choose>
  std::vector<One> chosen(Choose choose) const {
    std::vector<One> result;
    std::ranges::copy_if(all_, std::back_inserter(result), choose);
    return result;
  }

  static std::vector<char> contents(const One& one) {
    std::vector<char> bytes(one.bytes);
    const int key = 31 * one.from + 17 * one.to + 7 * one.tag + 3 * one.number;
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<char>(static_cast<std::size_t>(key) + i * 13 + (i >> 9));
    return bytes;
  }

 private:
  std::vector<One> all_;
};

class RandomRank {
 public:
  RandomRank(CpuGroup& group, const RandomMessages& messages, std::uint64_t seed)
      : group_(group), rng_(seed + 1000 * static_cast<std::uint64_t>(group.rank())) {
    sends_ = messages.chosen([&](const auto& one) { return one.from == group.rank(); });
    receives_ = messages.chosen([&](const auto& one) { return one.to == group.rank(); });
    for (const auto& one : sends_) outgoing_.push_back(RandomMessages::contents(one));
    for (const auto& one : receives_) incoming_.emplace_back(one.bytes);
  }

  void send_all(bool may_block) {
    for (std::size_t i = 0; i < sends_.size(); ++i) {
      const auto& one = sends_[i];
      if (may_block && rng_.chance(0.3)) {
        EXPECT_TRUE(group_.send(outgoing_[i].data(), one.bytes, Rank(one.to), one.tag, kPatience));
      } else {
        group_.start_send(outgoing_[i].data(), one.bytes, Rank(one.to), one.tag, kPatience,
                          sending_.next());
      }
    }
  }

  void receive_all(bool may_block) {
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      const auto& one = receives_[i];
      const auto source =
          one.tag >= RandomMessages::kAnyTags ? std::nullopt : std::optional(Rank(one.from));
      if (may_block && rng_.chance(0.3)) {
        receiving_.next()(group_.recv(incoming_[i].data(), one.bytes, source, one.tag, kPatience));
      } else {
        group_.start_recv(incoming_[i].data(), one.bytes, source, one.tag, kPatience,
                          receiving_.next());
      }
    }
  }

  void check() {
    sending_.expect_all_well();
    const auto results = receiving_.wait();
    // The messages received from any source, by source.
    std::map<int, std::vector<std::vector<char>>> left;
    for (const auto& one : receives_) {
      if (one.tag >= RandomMessages::kAnyTags)
        left[one.from].push_back(RandomMessages::contents(one));
    }
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      const auto& one = receives_[i];
      ASSERT_TRUE(results[i]) << results[i].error().message();
      const int source = results[i]->value;
      if (one.tag < RandomMessages::kAnyTags) {
        EXPECT_EQ(source, one.from);
        EXPECT_TRUE(incoming_[i] == RandomMessages::contents(one)) << i;
        continue;
      }
      auto& expected = left[source];
      ASSERT_FALSE(expected.empty());
      EXPECT_TRUE(incoming_[i] == expected.front()) << i;
      expected.erase(expected.begin());
    }
  }

 private:
  CpuGroup& group_;
  Rng rng_;
  std::vector<RandomMessages::One> sends_, receives_;
  std::vector<std::vector<char>> outgoing_, incoming_;
  Transfers sending_, receiving_;
};

TEST_P(CpuGroupMessages, AThousandAtRandomAllArriveWholeAndInOrderBesideCollectives) {
  const std::uint64_t seed = test_seed(3);
  SCOPED_TRACE(seed_text(seed));
  for (const bool receive_first : {true, false}) {
    const RandomMessages messages(seed + receive_first, world_.size(), 500);
    world_.run([&](CpuGroup& group, int rank) {
      RandomRank self(group, messages, seed);
      std::thread collectives([&] {
        for (int round = 0; round < 20; ++round) {
          Numbers data(20'000, rank);
          EXPECT_TRUE(group.all_reduce(list_of(writable(data)), ElementType::kI32, ReduceOp::kMax,
                                       kPatience));
          EXPECT_EQ(data.front(), group.size() - 1);
        }
      });
      if (receive_first) {
        self.receive_all(/*may_block=*/false);
        self.send_all(/*may_block=*/true);
      } else {
        self.send_all(/*may_block=*/false);
        self.receive_all(/*may_block=*/true);
      }
      self.check();
      collectives.join();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CpuGroupMessagesOfThree, testing::Values("aab", "abb", "abc"),
                         [](const auto& layout) { return std::string(layout.param); });
INSTANTIATE_TEST_SUITE_P(Layouts, CpuGroupMessages,
                         testing::Values("aa", "ab", "aab", "abb", "abc"),
                         [](const auto& layout) { return std::string(layout.param); });

}  // namespace
}  // namespace ddprun
