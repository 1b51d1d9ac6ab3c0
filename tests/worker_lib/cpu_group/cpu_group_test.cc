// Tests the promises of a group other than right results: errors that explain, and groups that
// end together.
#include "worker_lib/cpu_group/cpu_group.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "base/worker_page.h"
#include "base/worker_page_file.h"
#include "tests/support/eventually.h"
#include "tests/support/rank_threads.h"
#include "tests/support/running_store.h"
#include "tests/support/store_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/worker_lib/cpu_group/world.h"
#include "worker_lib/collective/call_header.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing_support::kPatience;
using testing_support::run_ranks;
using testing_support::TemporaryDirectory;

Result<void> sum_one(CpuGroup& group, Duration timeout = kPatience) {
  std::vector<float> value{1};
  return group.all_reduce(list_of(writable(value)), ElementType::kF32, ReduceOp::kSum, timeout);
}

// --- forming ---

// Forms a group of two ranks with different options: only rank 1 has those that `want` sets.
// Expects an error on both. told_0, told_1: text that the error of rank 0, or rank 1,
// contains.
void expect_no_group(const std::function<void(CpuGroupOptions&)>& want, const std::string& told_0,
                     const std::string& told_1) {
  testing_support::RunningStore store;
  run_ranks(2, [&](int rank) {
    CpuGroupOptions options{
        .rank = Rank(rank), .world_size = 2, .node_id = "a", .name = "world", .timeout = kPatience};
    if (rank == 1) want(options);
    const auto group = CpuGroup::form(*testing_support::store_of(store.port()), options);
    ASSERT_FALSE(group);
    EXPECT_EQ(group.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(group.error().message(), HasSubstr(rank == 0 ? told_0 : told_1));
  });
}

TEST(CpuGroupForming, RanksThatWantOtherOrdersOfReductionsDoNotFormAGroup) {
  expect_no_group([](CpuGroupOptions& options) { options.deterministic_across_layouts = true; },
                  "rank 1 wants the same bits for every layout, unlike this rank",
                  "rank 0 wants no same bits for every layout, unlike this rank");
}

TEST(CpuGroupForming, RanksThatLookForOtherThingsDoNotFormAGroup) {
  expect_no_group([](CpuGroupOptions& options) { options.checks = "NaN"; },
                  "rank 1 looks for NaN, this rank for nothing: DDPRUN_VERIFY must",
                  "rank 0 looks for nothing, this rank for NaN: DDPRUN_VERIFY must");
}

class CpuGroupLateComer : public testing::TestWithParam<const char*> {
 protected:
  using MemberCheck = std::function<std::optional<Error>()>;

  Error why_not(int rank, Duration timeout, const MemberCheck& check_members = {}) {
    const std::string letters = GetParam();
    const auto group = CpuGroup::form(*testing_support::store_of(store_.port()),
                                      {.rank = Rank(rank),
                                       .world_size = static_cast<int>(letters.size()),
                                       .node_id = std::string(1, letters[rank]),
                                       .name = "world",
                                       .timeout = timeout,
                                       .check_members = check_members});
    return group ? Error{.cause = "there is a group"} : group.error();
  }

 private:
  testing_support::RunningStore store_;
};

// All peer infos are there, but a rank that has published one is gone.
TEST_P(CpuGroupLateComer, IsToldWhoIsGone) {
  why_not(1, milliseconds(20));
  const Error error = why_not(0, kPatience);
  EXPECT_EQ(error.kind, ErrorKind::kPeerLost) << error.message();
  EXPECT_EQ(error.peer_rank, 1);
  EXPECT_THAT(error.message(), HasSubstr("rank 1 is gone"));
}

class CpuGroupLateComerOfThree : public CpuGroupLateComer {};

// Rank 1 has given up because of rank 2.
TEST_P(CpuGroupLateComerOfThree, IsToldWhomTheWorldKnowsToBeDead) {
  const MemberCheck check_members = [] {
    return Error{.kind = ErrorKind::kPeerLost, .cause = "rank 2 died", .peer_rank = 2};
  };
  why_not(2, milliseconds(20));
  for (const int rank : {1, 0}) {
    const Error error = why_not(rank, kPatience, check_members);
    EXPECT_EQ(error.kind, ErrorKind::kPeerLost) << error.message();
    EXPECT_EQ(error.peer_rank, 2);
    EXPECT_THAT(error.message(), HasSubstr("rank 2 died"));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CpuGroupLateComer, testing::Values("aa", "ab"),
                         [](const auto& layout) { return std::string(layout.param); });
INSTANTIATE_TEST_SUITE_P(Layouts, CpuGroupLateComerOfThree, testing::Values("aaa", "aab", "abc"),
                         [](const auto& layout) { return std::string(layout.param); });

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

// --- tuning ---

// Returns sums for which no two orders give the same bits, of a private and of a shared
// tensor.
std::vector<std::vector<float>> sums_of(const char* letters, const TuningOverrides& tuning) {
  EngineWorld world(letters, {.tuning = tuning});
  std::vector<std::vector<float>> sums(world.size());
  world.run([&](CpuGroup& group, int rank) {
    for (const std::size_t count : {3, 5'000, 100'000}) {
      const std::shared_ptr<char> shared = group.shared_memory(count * sizeof(float));
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = 1 / static_cast<float>(i * group.size() + rank + 1);
      }
      std::memcpy(shared.get(), values.data(), count * sizeof(float));
      for (const WritableBytes data :
           {writable(values), WritableBytes(shared.get(), count * sizeof(float))}) {
        ASSERT_TRUE(group.all_reduce(list_of(data), ElementType::kF32, ReduceOp::kSum, kPatience));
        const auto* const begin = reinterpret_cast<const float*>(data.data());
        sums[rank].insert(sums[rank].end(), begin, begin + count);
      }
    }
  });
  return sums;
}

TEST(CpuGroupTuning, MoreRanksThanCoresPullNothing) {
  EXPECT_GT(choose_tuning({.is_crowded = true}).pull_bytes, std::size_t{1} << 60);
  EXPECT_LT(choose_tuning({}).pull_bytes, std::size_t{1} << 20);
}

TEST(CpuGroupTuning, LongChunksOfTwoRanksFitTheSecondLevelCache) {
  constexpr std::size_t kKiB = 1024;
  EXPECT_EQ(choose_tuning({.cache_bytes = 1024 * kKiB}).direct_chunk_bytes, 128 * kKiB);
  EXPECT_EQ(choose_tuning({.cache_bytes = 4096 * kKiB}).direct_chunk_bytes, 256 * kKiB);
  EXPECT_EQ(choose_tuning({.cache_bytes = 1}).direct_chunk_bytes, 64 * kKiB);
  EXPECT_EQ(choose_tuning({}).direct_chunk_bytes, 256 * kKiB);  // unknown
}

TEST(CpuGroupTuning, BetweenNodesAStageIsLonger) {
  EXPECT_EQ(choose_tuning({.nodes = 2}).stage_bytes, 2 * choose_tuning({}).stage_bytes);
}

TEST(CpuGroupTuning, IsGivenToTuneOnEachRank) {
  testing_support::RunningStore server;
  std::atomic<int> calls = 0;
  run_ranks(2, [&](int rank) {
    const auto store = testing_support::store_of(server.port());
    const auto tune = [&](CpuTuning& tuning) {
      ++calls;
      EXPECT_GT(tuning.stage_bytes, 0u) << "what was chosen";
    };
    EXPECT_TRUE(CpuGroup::form(*store, {.rank = Rank(rank),
                                        .world_size = 2,
                                        .name = "tuned",
                                        .timeout = kPatience,
                                        .tune = tune}));
  });
  EXPECT_EQ(calls, 2);
}

TEST(CpuGroupTuning, ChangesNoBitOfAResult) {
  for (const char* const letters : {"aa", "aaaa", "aabb"}) {
    const auto expected = sums_of(letters, {});
    EXPECT_EQ(sums_of(letters, {.spin = Duration::zero(),
                                .stage_bytes = 8192,
                                .small_reduce_bytes = 0,
                                .in_place_bytes = 0}),
              expected)
        << letters;
    EXPECT_EQ(sums_of(letters, {.stage_bytes = std::size_t{1} << 20,
                                .small_reduce_bytes = std::size_t{1} << 40,
                                .in_place_bytes = std::size_t{1} << 40}),
              expected)
        << letters;
  }
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
        HasSubstr(
            "ranks 0 and 2 called all_reduce #1 of 8 f32 in 2 tensors (sum); rank 1 "
            "called all_reduce #1 of 8 f32 in 2 tensors (sum) whose sizes or dtypes are others"));
  });
}

TEST_P(CpuGroupAgreement, RanksWhoseBytesAreOfOtherTypesAllLearnIt) {
  EngineWorld world(GetParam());
  world.run([](CpuGroup& group, int rank) {
    std::vector<float> data(4);
    CpuCallOptions terms(kPatience);
    terms.type = rank == 2 ? ElementType::kI32 : ElementType::kF32;
    const Result<void> result = group.broadcast(list_of(writable(data)), Rank(0), terms);
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message(),
                HasSubstr("ranks 0 and 1 called broadcast #1 of 4 f32 from rank 0; rank 2 called "
                          "broadcast #1 of 4 i32 from rank 0"));
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
    std::string first_failure = "all_reduce #2 of 1 f32 (sum): ";
    if (rank == 2) {
      done.wait();
      Result<void> late = sum_one(group);
      if (late && std::string_view(GetParam()) != "aaa") {
        // Between nodes, the others' data may arrive before the message that they gave up.
        late = group.barrier(kPatience);
        first_failure = "barrier #3: ";
      }
      ASSERT_FALSE(late);
      EXPECT_EQ(late.error().kind, ErrorKind::kTimeout);
      EXPECT_THAT(late.error().message(),
                  AllOf(HasSubstr(first_failure), HasSubstr("gave up: rank 2 did not arrive")));
    } else {
      const Error error = sum_one(group, milliseconds(100)).error();
      EXPECT_EQ(error.kind, ErrorKind::kTimeout);
      EXPECT_THAT(error.message(),
                  AllOf(HasSubstr(first_failure), HasSubstr("rank 2 did not arrive")));
      if (--waiting == 0) others_are_done.set_value();
    }
    const Error later = group.barrier(kPatience).error();
    EXPECT_EQ(later.kind, ErrorKind::kStopped);
    EXPECT_THAT(later.message(), HasSubstr("the group has ended: " + first_failure));
  });
}

// Returns pages as an agent makes them. The second one is of a rank that has been in a recv
// for 90 s. The first one is of another rank.
PageFile pages_with_a_rank_in_recv() {
  PageFile made = *make_page_file("pages", 2);
  FlightRecord& record = made.pages[1].record_of(1);
  record.call = FlightCall::kRecv;
  record.bytes = 8;
  record.peer = 1;
  record.begun_ns = to_page_time(BootClock::now() - seconds(90));
  record.number = 1;
  made.pages[1].calls = 1;
  return made;
}

TEST_P(CpuGroupEnd, ATimeoutSaysWhoIsThereAndWhatTheOthersDoInstead) {
  const PageFile made = pages_with_a_rank_in_recv();
  EngineWorld world(GetParam(), {.pages = {{}, {}, {made.file.get(), kWorkerPageBytes}}});
  std::latch all_are_done(3);
  world.run([&](CpuGroup& group, int rank) {
    if (rank == 0) {
      const Error error = sum_one(group, milliseconds(100)).error();
      EXPECT_EQ(error.kind, ErrorKind::kTimeout);
      EXPECT_THAT(error.message(),
                  HasSubstr("all_reduce #1 of 1 f32 (sum): ranks 1 and 2 did not arrive; rank 0 is "
                            "there. rank 2: it has been in recv of 8 bytes from rank 1 for "));
    }
    all_are_done.arrive_and_wait();
  });
}

TEST_P(CpuGroupEnd, AMessageThatDoesNotComeSaysWhatItsSenderDoesInstead) {
  const PageFile made = pages_with_a_rank_in_recv();
  EngineWorld world(GetParam(), {.pages = {{}, {}, {made.file.get(), kWorkerPageBytes}}});
  std::latch all_are_done(3);
  world.run([&](CpuGroup& group, int rank) {
    if (rank == 0) {
      char byte = 0;
      const auto received = group.recv(&byte, 1, Rank(2), 5, milliseconds(100));
      ASSERT_FALSE(received);
      EXPECT_THAT(
          received.error().message(),
          HasSubstr(
              "rank 2 did not send it. rank 2: it has been in recv of 8 bytes from rank 1 for "));
    }
    all_are_done.arrive_and_wait();
  });
}

// A closed descriptor's number is soon reused for another file.
TEST_P(CpuGroupEnd, APageIsReadFromTheFileThatItsRankHasShown) {
  PageFile made = pages_with_a_rank_in_recv();
  EngineWorld world(GetParam(), {.pages = {{}, {}, {made.file.get(), kWorkerPageBytes}}});
  made.file.reset();
  const Error error = sum_one(world.group(0), milliseconds(100)).error();
  EXPECT_THAT(error.message(),
              HasSubstr("rank 2: it has been in recv of 8 bytes from rank 1 for "));
}

TEST(CpuGroup, OfWhatIsNoPageNothingIsSaid) {
  const TemporaryDirectory directory;
  const UniqueFd strange(
      open(directory.write("strange", std::string(1 << 20, 'x')).c_str(), O_RDWR | O_CLOEXEC));
  EngineWorld world("aab", {.pages = {{}, {strange.get(), 0}, {strange.get(), 1 << 20}}});
  const Error error = sum_one(world.group(0), milliseconds(100)).error();
  EXPECT_THAT(error.message(), AllOf(HasSubstr("ranks 1 and 2 did not arrive; rank 0 is there"),
                                     Not(HasSubstr(". rank "))));
}

TEST_P(CpuGroupEnd, AbortEndsTheCallInProgressAndTellsTheOthers) {
  EngineWorld world(GetParam());
  world.run([&](CpuGroup& group, int rank) {
    EXPECT_TRUE(group.barrier(kPatience));
    if (rank == 1) {
      // The ranks wait for each other in a barrier that rank 1 does not enter, or soon will.
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

// The last rank that needs data gets it, however early the other ranks leave.
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

TEST(CpuGroup, RanksOfAllNodesThatAreAheadAreKnown) {
  EngineWorld world("aab");
  world.run([](CpuGroup& group, int rank) {
    if (rank == 0) {
      EXPECT_TRUE(testing_support::eventually([&] {
        return group.ranks_ahead(kPatience) == std::vector<int>{1, 2};
      }));
    }
    EXPECT_TRUE(group.barrier(kPatience));
  });
  EXPECT_TRUE(world.group(2).ranks_ahead(kPatience).empty());
}

// --- data that is sent ahead, if each node has one rank ---

// Returns the largest number of unread bytes among the connected sockets of this process.
int most_unread() {
  int most = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    int bytes = 0;
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    const bool is_connection = getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0;
    if (is_connection && ioctl(fd, FIONREAD, &bytes) == 0) most = std::max(most, bytes);
  }
  return most;
}

using Call = std::function<Result<void>(CpuGroup&)>;

// Returns calls in which rank 0 sends data to rank 1, of the size of data[0].
std::map<std::string, Call> calls_for_rank_1(std::vector<std::vector<float>>& data) {
  const auto sum = [&](auto call) {
    return [&, call](CpuGroup& group) { return call(group, list_of(writable(data[0]))); };
  };
  std::map<std::string, Call> calls;
  calls["all_reduce"] = sum([](CpuGroup& group, const auto& list) {
    return group.all_reduce(list, ElementType::kF32, ReduceOp::kSum, kPatience);
  });
  calls["reduce"] = sum([](CpuGroup& group, const auto& list) {
    return group.reduce(list, ElementType::kF32, ReduceOp::kSum, Rank(1), kPatience);
  });
  calls["broadcast"] = sum(
      [](CpuGroup& group, const auto& list) { return group.broadcast(list, Rank(0), kPatience); });
  calls["all_gather"] = [&](CpuGroup& group) {
    const std::vector<WritableBytes> outputs{writable(data[1]), writable(data[2])};
    return group.all_gather(list_of(readable(data[0])), outputs, kPatience);
  };
  calls["gather"] = [&](CpuGroup& group) {
    std::vector<WritableBytes> outputs;
    if (group.rank() == 1) outputs = {writable(data[1]), writable(data[2])};
    return group.gather(readable(data[0]), outputs, Rank(1), kPatience);
  };
  calls["scatter"] = [&](CpuGroup& group) {
    std::vector<ReadableBytes> inputs;
    if (group.rank() == 0) inputs = {readable(data[1]), readable(data[2])};
    return group.scatter(inputs, writable(data[0]), Rank(0), kPatience);
  };
  calls["reduce_scatter"] = [&](CpuGroup& group) {
    const std::vector<ReadableBytes> inputs{readable(data[1]), readable(data[2])};
    return group.reduce_scatter(inputs, list_of(writable(data[0])), ElementType::kF32,
                                ReduceOp::kSum, kPatience);
  };
  return calls;
}

TEST(CpuGroupAhead, TheFirstChunkIsThereBeforeItsReceiverHasCalledAnything) {
  constexpr std::size_t kCount = 2000;
  std::vector<std::vector<std::vector<float>>> data(
      2, std::vector<std::vector<float>>(3, std::vector<float>(kCount, 1)));
  for (const auto& [name, call] : calls_for_rank_1(data[0])) {
    SCOPED_TRACE(name);
    EngineWorld world("ab");
    world.run([&, &name = name, &call = call](CpuGroup& group, int rank) {
      if (rank == 1) {
        EXPECT_TRUE(testing_support::eventually([] {
          return most_unread() >= static_cast<int>(sizeof(Arrival) + kCount * sizeof(float));
        }));
      }
      EXPECT_TRUE(rank == 0 ? call(group) : calls_for_rank_1(data[1]).at(name)(group));
      EXPECT_TRUE(group.barrier(kPatience)) << "nothing is left over";
    });
  }
}

// The receiver does not take data that arrived ahead for a header. Data that has not arrived
// does not keep its sender from learning of the disagreement.
TEST(CpuGroupAhead, WhoHasSentAheadToARankThatCallsSomethingElseLearnsIt) {
  for (const std::size_t count : {std::size_t{2000}, std::size_t{1'000'000}}) {
    std::vector<std::vector<float>> data(3, std::vector<float>(count, 1));
    for (const char* const name : {"all_reduce", "broadcast", "all_gather"}) {
      SCOPED_TRACE(name);
      EngineWorld world("ab");
      world.run([&](CpuGroup& group, int rank) {
        const Result<void> result =
            rank == 0 ? calls_for_rank_1(data).at(name)(group) : group.barrier(kPatience);
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().kind, ErrorKind::kInvalidArgument);
        EXPECT_THAT(result.error().message(),
                    AllOf(HasSubstr(std::string("rank 0 called ") + name + " #1 of "),
                          HasSubstr("rank 1 called barrier #1")));
      });
    }
  }
}

// --- notes ---

TEST(CpuGroupNotes, AreReadOnAllNodesBesideTheGroupsCalls) {
  EngineWorld world("aab");
  world.group(0).write_note("zero");
  world.group(2).write_note(std::string(kMaxNoteBytes, '2'));
  const std::vector<std::string> all{"zero", "", std::string(kMaxNoteBytes, '2')};
  EXPECT_EQ(world.group(1).notes(kPatience), all);
  EXPECT_EQ(world.group(2).notes(kPatience), all);
  EXPECT_EQ(world.group(1).notes(Duration::zero())[0], "zero");
  EXPECT_EQ(world.group(1).notes(Duration::zero())[2], "") << "other nodes are not asked";
}

TEST(CpuGroupNotes, OfARankThatDoesNotAnswerAreMissing) {
  EngineWorld world("ab");
  world.group(0).write_note("zero");
  world.destroy(1);
  EXPECT_EQ(world.group(0).notes(milliseconds(20)), (std::vector<std::string>{"zero", ""}));
}

TEST(CpuGroup, AFailureFoundBesideTheCallsEndsTheGroupOnAllRanks) {
  EngineWorld world("ab");
  world.group(0).fail(ErrorKind::kInvalidArgument, 1, "the ranks disagree");
  world.run([](CpuGroup& group, int) {
    const Error error = sum_one(group).error();
    EXPECT_EQ(error.kind, ErrorKind::kInvalidArgument);
    EXPECT_EQ(error.peer_rank, 1);
    EXPECT_THAT(error.message(), HasSubstr("the ranks disagree"));
  });
}

}  // namespace
}  // namespace ddprun
