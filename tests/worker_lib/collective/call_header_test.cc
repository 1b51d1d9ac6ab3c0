#include "worker_lib/collective/call_header.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

TEST(CallHeader, IsDescribedAsItWasCalled) {
  EXPECT_EQ(describe({.sequence = 12,
                      .count = 1048576,
                      .kind = CallKind::kAllReduce,
                      .type = ElementType::kF32,
                      .op = ReduceOp::kSum}),
            "all_reduce #12 of 1048576 f32 (sum)");
  EXPECT_EQ(describe({.sequence = 3, .count = 400, .root = 0, .kind = CallKind::kBroadcast}),
            "broadcast #3 of 400 B from rank 0");
  EXPECT_EQ(describe({.sequence = 4,
                      .count = 9,
                      .root = 2,
                      .kind = CallKind::kReduce,
                      .type = ElementType::kBF16,
                      .op = ReduceOp::kMax}),
            "reduce #4 of 9 bf16 (max) to rank 2");
  EXPECT_EQ(describe({.sequence = 5, .kind = CallKind::kBarrier}), "barrier #5");
  EXPECT_EQ(describe({.sequence = 5, .kind = CallKind::kMonitoredBarrier}), "monitored_barrier #5");
  EXPECT_EQ(describe({.sequence = 6, .kind = CallKind::kAllToAll}), "all_to_all #6");
  EXPECT_EQ(describe({.sequence = 8, .count = 90, .kind = CallKind::kBroadcast, .tensors = 7}),
            "broadcast #8 of 90 B in 7 tensors");
}

TEST(CallHeader, ListsOfOtherSizesAreTold) {
  const std::size_t one[] = {3, 5};
  const std::size_t other[] = {5, 3};
  EXPECT_EQ(digest_of(one), digest_of(one));
  EXPECT_NE(digest_of(one), digest_of(other));
  CallHeader mine{.sequence = 1, .count = 8, .kind = CallKind::kBroadcast, .tensors = 2};
  CallHeader theirs = mine;
  mine.digest = digest_of(one);
  theirs.digest = digest_of(other);
  const std::vector<CallHeader> by_rank{mine, theirs};
  EXPECT_EQ(
      check_agreement(mine, by_rank).error().message(),
      "broadcast #1 of 8 B in 2 tensors: the ranks disagree: rank 0 called broadcast #1 of 8 B "
      "in 2 tensors; rank 1 called broadcast #1 of 8 B in 2 tensors whose sizes or dtypes are "
      "others");
}

TEST(CallHeader, AgreementIsSilent) {
  const CallHeader call{.sequence = 1, .count = 4, .kind = CallKind::kAllReduce};
  EXPECT_TRUE(check_agreement(call, std::vector<CallHeader>(5, call)));
}

TEST(CallHeader, DisagreementIsTableOfWhoCalledWhat) {
  const CallHeader barrier{.sequence = 7, .kind = CallKind::kBarrier};
  const CallHeader gather{.sequence = 7, .count = 8, .kind = CallKind::kAllGather};
  const std::vector<CallHeader> by_rank{barrier, gather, barrier, barrier, gather};
  const Result<void> result = check_agreement(gather, by_rank);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(
      result.error().message(),
      "all_gather #7 of 8 B: the ranks disagree: ranks 0, 2 and 3 called barrier #7; ranks 1 and 4 "
      "called all_gather #7 of 8 B");
}

}  // namespace
}  // namespace ddprun
