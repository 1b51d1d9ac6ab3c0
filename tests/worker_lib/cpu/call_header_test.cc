#include "worker_lib/cpu/call_header.h"

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
