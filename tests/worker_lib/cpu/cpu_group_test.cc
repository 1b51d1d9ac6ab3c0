// What a group promises beyond right results: errors that tell, groups that end together, and
// messages between pairs of ranks.
#include "worker_lib/cpu/cpu_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <numeric>

#include "tests/support/eventually.h"
#include "tests/support/rank_threads.h"
#include "tests/support/running_store.h"
#include "tests/worker_lib/cpu/world.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::kPatience;
using testing_support::run_ranks;

Result<void> sum_one(CpuGroup& group, Duration timeout = kPatience) {
  std::vector<float> value{1};
  return group.all_reduce(list_of(writable(value)), ElementType::kF32, ReduceOp::kSum, timeout);
}

// --- one rank ---

TEST(SoloGroup, EveryCollectiveIsTheIdentity) {
  EngineWorld world("a");
  CpuGroup& group = world.group(0);
  EXPECT_EQ(group.size(), 1);
  const std::vector<int> input{1, 2, 3};
  std::vector<int> data = input;
  std::vector<int> output(3);
  EXPECT_TRUE(
      group.all_reduce(list_of(writable(data)), ElementType::kI32, ReduceOp::kSum, kPatience));
  EXPECT_EQ(data, input);
  EXPECT_TRUE(group.all_gather(list_of(readable(input)), list_of(writable(output)), kPatience));
  EXPECT_EQ(output, input);
  output = {};
  output.resize(3);
  EXPECT_TRUE(group.reduce_scatter(list_of(readable(input)), list_of(writable(output)),
                                   ElementType::kI32, ReduceOp::kMax, kPatience));
  EXPECT_EQ(output, input);
  output = {};
  output.resize(3);
  EXPECT_TRUE(group.all_to_all(list_of(readable(input)), list_of(writable(output)), kPatience));
  EXPECT_EQ(output, input);
  output.resize(2);
  EXPECT_EQ(group.all_to_all(list_of(readable(input)), list_of(writable(output)), kPatience)
                .error()
                .message(),
            "all_to_all: rank 0 sends 12 B to itself, but expects 8 B");
  EXPECT_TRUE(group.barrier(kPatience));
}

TEST(SoloGroup, StopsWhenAborted) {
  EngineWorld world("a");
  world.group(0).abort("enough");
  EXPECT_EQ(world.group(0).barrier(kPatience).error().message(),
            "barrier: the group was aborted: enough");
}

// --- disagreement ---

class CpuGroupAgreement : public testing::TestWithParam<const char*> {};

TEST_P(CpuGroupAgreement, RanksThatCallDifferentThingsAllLearnWhoCalledWhat) {
  EngineWorld world(GetParam());
  world.run([](CpuGroup& group, int rank) {
    EXPECT_TRUE(group.barrier(kPatience));
    std::vector<float> data(8);
    const Result<void> result = rank == 1
                                    ? group.broadcast(list_of(writable(data)), Rank(0), kPatience)
                                    : group.all_reduce(list_of(writable(data)), ElementType::kF32,
                                                       ReduceOp::kSum, kPatience);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(result.error().message(),
                HasSubstr("ranks 0 and 2 called all_reduce #2 of 8 f32 (sum); rank 1 "
                          "called broadcast #2 of 32 B from rank 0"));
    EXPECT_EQ(group.barrier(kPatience).error().kind, ErrorKind::kStopped);
  });
}

TEST_P(CpuGroupAgreement, RanksWhoseListsDifferInTheSizesOfTensorsAllLearnIt) {
  EngineWorld world(GetParam());
  world.run([](CpuGroup& group, int rank) {
    std::vector<std::vector<float>> list{std::vector<float>(rank == 1 ? 3 : 5),
                                         std::vector<float>(rank == 1 ? 5 : 3)};
    const Result<void> result =
        group.all_reduce(writable_each(list), ElementType::kF32, ReduceOp::kSum, kPatience);
    ASSERT_FALSE(result);
    EXPECT_THAT(
        result.error().message(),
        HasSubstr("ranks 0 and 2 called all_reduce #1 of 8 f32 in 2 tensors (sum); rank 1 "
                  "called all_reduce #1 of 8 f32 in 2 tensors (sum) whose sizes are others"));
  });
}

TEST_P(CpuGroupAgreement, AllLearnWhoSendsWhatAnotherDoesNotExpect) {
  EngineWorld world(GetParam());
  world.run([](CpuGroup& group, int rank) {
    std::vector<std::vector<char>> inputs(3, std::vector<char>(8)), outputs = inputs;
    if (rank == 2) outputs[1].resize(12);
    const Result<void> result =
        group.all_to_all(readable_each(inputs), writable_each(outputs), kPatience);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_EQ(result.error().message(),
              "all_to_all #1 of 24 B: rank 1 sends 8 B to rank 2, which expects 12 B");
    EXPECT_EQ(group.barrier(kPatience).error().kind, ErrorKind::kStopped);
  });
}

TEST_P(CpuGroupAgreement, RanksThatDifferInSizeAllLearnIt) {
  EngineWorld world(GetParam());
  world.run([](CpuGroup& group, int rank) {
    std::vector<float> data(rank == 2 ? 900'000 : 800'000);
    const Result<void> result =
        group.all_reduce(list_of(writable(data)), ElementType::kF32, ReduceOp::kSum, kPatience);
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message(),
                AllOf(HasSubstr("ranks 0 and 1 called all_reduce #1 of 800000 f32"),
                      HasSubstr("rank 2 called all_reduce #1 of 900000 f32")));
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, CpuGroupAgreement, testing::Values("aaa", "aab", "abc"),
                         [](const auto& layout) { return std::string(layout.param); });

// --- time ---

class CpuGroupEnd : public testing::TestWithParam<const char*> {};

TEST_P(CpuGroupEnd, ARankThatDoesNotComeIsNamedAndTheGroupIsFinishedForAll) {
  EngineWorld world(GetParam());
  std::promise<void> others_are_done;
  std::shared_future<void> done(others_are_done.get_future());
  std::atomic<int> waiting{2};
  world.run([&](CpuGroup& group, int rank) {
    EXPECT_TRUE(group.barrier(kPatience));
    if (rank == 2) {
      done.wait();
      const Error late = sum_one(group).error();
      EXPECT_EQ(late.kind, ErrorKind::kTimeout);
      EXPECT_THAT(late.message(),
                  AllOf(HasSubstr("gave up: rank 2 did not arrive"), HasSubstr("all_reduce #2")));
    } else {
      const Error error = sum_one(group, milliseconds(100)).error();
      EXPECT_EQ(error.kind, ErrorKind::kTimeout);
      EXPECT_THAT(error.message(), AllOf(HasSubstr("all_reduce #2 of 1 f32 (sum)"),
                                         HasSubstr("rank 2 did not arrive")));
      if (--waiting == 0) others_are_done.set_value();
    }
    const Error later = group.barrier(kPatience).error();
    EXPECT_EQ(later.kind, ErrorKind::kStopped);
    EXPECT_THAT(later.message(),
                HasSubstr("the group is finished since all_reduce #2 of 1 f32 (sum): "));
  });
}

TEST_P(CpuGroupEnd, AbortEndsTheCallInProgressAndTellsTheOthers) {
  EngineWorld world(GetParam());
  world.run([&](CpuGroup& group, int rank) {
    EXPECT_TRUE(group.barrier(kPatience));
    if (rank == 1) {
      // The ranks wait for each other in a barrier that rank 1 does not enter, or are about to.
      group.abort("the supervisor said so");
      EXPECT_THAT(group.barrier(kPatience).error().message(),
                  HasSubstr("barrier #2: the group was aborted: the supervisor said so"));
      return;
    }
    const TimePoint start = BootClock::now();
    const Error error = group.barrier(kPatience).error();
    EXPECT_LT(BootClock::now() - start, seconds(1));
    EXPECT_EQ(error.kind, ErrorKind::kStopped);
    EXPECT_THAT(error.message(), HasSubstr("rank 1 aborted the group: the supervisor said so"));
  });
}

TEST_P(CpuGroupEnd, AbortFromAnotherThreadEndsALongWait) {
  EngineWorld world(GetParam());
  std::promise<void> entered;
  std::thread watchdog([&] {
    entered.get_future().wait();
    world.group(0).abort("watchdog");
  });
  const Error error = [&] {
    entered.set_value();
    return world.group(0).barrier(kPatience).error();
  }();
  watchdog.join();
  EXPECT_EQ(error.kind, ErrorKind::kStopped);
}

TEST_P(CpuGroupEnd, ARankThatLeavesIsNamedByThoseWhoStillNeedIt) {
  EngineWorld world(GetParam());
  world.run([&](CpuGroup& group, int rank) {
    EXPECT_TRUE(group.barrier(kPatience));
    if (rank == 1) return world.destroy(1);
    const Error error = group.barrier(kPatience).error();
    EXPECT_EQ(error.kind, ErrorKind::kPeerLost);
    EXPECT_EQ(error.peer_rank, 1);
    EXPECT_THAT(error.message(), HasSubstr("rank 1 has left the group"));
  });
}

// The last to need something gets it, however fast the others are gone.
TEST_P(CpuGroupEnd, LeavingAfterTheLastCollectiveDisturbsNobody) {
  for (int trial = 0; trial < 10; ++trial) {
    EngineWorld world(GetParam());
    world.run([&](CpuGroup& group, int rank) {
      std::vector<float> data(300'000, 1);
      EXPECT_TRUE(
          group.all_reduce(list_of(writable(data)), ElementType::kF32, ReduceOp::kSum, kPatience));
      EXPECT_EQ(data, std::vector<float>(300'000, 3));
      world.destroy(rank);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CpuGroupEnd, testing::Values("aaa", "aab", "abb", "abc"),
                         [](const auto& layout) { return std::string(layout.param); });

TEST(CpuGroup, SeveralGroupsOfTheSameRanksAreIndependent) {
  testing_support::RunningStore store;
  run_ranks(2, [&](int rank) {
    const auto first = form_rank(store.port(), "aa", rank, "first");
    const auto second = form_rank(store.port(), "aa", rank, "second");
    EXPECT_TRUE(sum_one(*second));
    first->abort("only this one");
    EXPECT_FALSE(sum_one(*first));
    EXPECT_TRUE(sum_one(*second));
  });
}

// --- messages ---

class CpuGroupMessages : public testing::TestWithParam<const char*> {
 protected:
  EngineWorld world_{GetParam()};

  static std::vector<int> numbers(std::size_t count, int first) {
    std::vector<int> result(count);
    std::iota(result.begin(), result.end(), first);
    return result;
  }
};

TEST_P(CpuGroupMessages, ArriveInOrderAndWholeWhateverTheirSize) {
  world_.run([](CpuGroup& group, int rank) {
    for (const std::size_t count : {0, 1, 1000, 65'536, 3'000'001}) {
      std::vector<int> data = numbers(count, static_cast<int>(count));
      const std::vector<int> expected = data;
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
      const std::vector<int> mine = numbers(2000, 10'000 * rank + to);
      std::vector<int> got(2000);
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
    const std::vector<int> mine = numbers(count, rank);
    std::vector<int> got(count);
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

TEST_P(CpuGroupMessages, UnderOtherTagsAreSetAsideUpToALimitThatIsNamed) {
  world_.run([](CpuGroup& group, int rank) {
    const std::vector<char> block(20 << 20);
    if (rank == 0) {
      for (int tag = 1; tag <= 4; ++tag) {
        if (!group.send(block.data(), block.size(), Rank(1), tag, kPatience)) break;
      }
    } else if (rank == 1) {
      char byte = 0;
      const Error error = group.recv(&byte, 1, Rank(0), 0, kPatience).error();
      EXPECT_EQ(error.kind, ErrorKind::kResource);
      EXPECT_THAT(error.message(),
                  HasSubstr("rank 0 sent more than 64 MiB under other tags before tag 0"));
    }
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

INSTANTIATE_TEST_SUITE_P(Layouts, CpuGroupMessages, testing::Values("aa", "ab", "aab", "abb"),
                         [](const auto& layout) { return std::string(layout.param); });

}  // namespace
}  // namespace ddprun
