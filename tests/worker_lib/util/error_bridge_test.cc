#include "worker_lib/util/error_bridge.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_dist_error.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing_support::dist_error_of;

TEST(ErrorBridge, EveryInternalKindHasItsPublicOne) {
  using Public = DistError::Kind;
  const std::vector<std::pair<ErrorKind, Public>> pairs{
      {ErrorKind::kInvalidArgument, Public::kInvalidArgument},
      {ErrorKind::kNotFound, Public::kSystem},
      {ErrorKind::kTimeout, Public::kTimeout},
      {ErrorKind::kConnection, Public::kConnection},
      {ErrorKind::kProtocol, Public::kConnection},
      {ErrorKind::kPeerLost, Public::kPeerLost},
      {ErrorKind::kStopped, Public::kStopped},
      {ErrorKind::kResource, Public::kSystem},
      {ErrorKind::kCorrupt, Public::kCorrupt},
      {ErrorKind::kUnsupported, Public::kUnsupported},
      {ErrorKind::kSystem, Public::kSystem},
  };
  for (const auto& [internal, expected] : pairs) {
    EXPECT_EQ(public_kind(internal), expected) << to_text(internal);
  }
}

TEST(ErrorBridge, RankTimesAndWordsAreKept) {
  Error error = timeout_error("all_reduce", "rank 3 did not come", seconds(2), seconds(2));
  error.kind = ErrorKind::kPeerLost;
  error.peer_rank = 3;
  const DistError thrown = to_dist_error(error);
  EXPECT_EQ(thrown.kind(), DistError::Kind::kPeerLost);
  EXPECT_EQ(thrown.peer_rank(), 3);
  EXPECT_EQ(thrown.waited(), seconds(2));
  EXPECT_EQ(thrown.allowed(), seconds(2));
  EXPECT_STREQ(thrown.what(), "all_reduce: rank 3 did not come (waited 2.0 s of 2.0 s)");
}

Error caught(const std::function<void()>& thrower) {
  try {
    thrower();
  } catch (...) {
    return error_in_flight("do something");
  }
  return {};
}

TEST(ErrorBridge, LibTorchsExceptionBecomesOneLineWithoutItsBacktrace) {
  const Error error = caught([] { TORCH_CHECK(false, "no such device\nsecond line"); });
  EXPECT_EQ(error.kind, ErrorKind::kSystem);
  EXPECT_EQ(error.message(), "do something: no such device");
}

TEST(ErrorBridge, ADistErrorKeepsItsKindAndRankOnTheWayThrough) {
  const Error error = caught([] { throw DistError(DistError::Kind::kPeerLost, "gone", 2); });
  EXPECT_EQ(error.kind, ErrorKind::kPeerLost);
  EXPECT_EQ(error.peer_rank, 2);
}

TEST(ErrorBridge, MemoryThatIsOutIsAResource) {
  EXPECT_EQ(caught([] { throw std::bad_alloc(); }).kind, ErrorKind::kResource);
}

TEST(ErrorBridge, WhatABodyThrowsLeavesAsADistError) {
  EXPECT_DIST_ERROR(with_dist_errors("gather", []() -> int { throw std::runtime_error("odd"); }),
                    DistError::Kind::kSystem, testing::StrEq("gather: odd"));
}

TEST(ErrorBridge, ADistErrorLeavesABodyAsItIs) {
  const DistError thrown = dist_error_of([] {
    with_dist_errors("gather",
                     []() -> int { throw DistError(DistError::Kind::kTimeout, "late", 5); });
  });
  EXPECT_STREQ(thrown.what(), "late");
  EXPECT_EQ(thrown.peer_rank(), 5);
}

TEST(ErrorBridge, ValueOrThrowHandsTheValueOutOrThrows) {
  EXPECT_EQ(value_or_throw(Result<int>(7)), 7);
  EXPECT_NO_THROW(value_or_throw(Result<void>()));
  EXPECT_THROW(value_or_throw(Result<int>(Error{.cause = "broken"})), DistError);
}

}  // namespace
}  // namespace ddprun
