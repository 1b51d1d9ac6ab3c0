#include "worker_lib/checkpoint/core/fencing_token.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

CheckpointManifest manifest(std::int64_t step, std::int64_t claim) {
  return {.step = step, .claim = claim};
}

TEST(FencingToken, WhatWasThereAndWhatTheOwnerAnnouncesCounts) {
  const FencingToken first = next_claim({}, 0, "aa", {{10, "ten"}});
  const FencingToken second = next_claim(first, 1, "bb", {{10, "ten"}, {20, "twenty"}});
  EXPECT_EQ(first.number, 1);
  EXPECT_EQ(second.number, 2);
  EXPECT_EQ(second.owner, "bb");
  EXPECT_TRUE(counts(second, manifest(10, 0), "ten"));
  EXPECT_TRUE(counts(second, manifest(20, 1), "twenty"));
  EXPECT_TRUE(counts(second, manifest(30, 2), "thirty"));
}

TEST(FencingToken, WhatAnEarlierRunAnnouncesLaterDoesNot) {
  const FencingToken claim = next_claim({.number = 1}, 1, "bb", {{20, "twenty"}});
  EXPECT_FALSE(counts(claim, manifest(30, 1), "late"));
  EXPECT_FALSE(counts(claim, manifest(10, 0), "of a version without claims"));
  EXPECT_FALSE(counts(claim, manifest(20, 1), "another one of step 20"));
}

TEST(FencingToken, WithoutOneOrWithAnOlderOneEverythingCounts) {
  EXPECT_TRUE(counts({}, manifest(30, 5), "x"));
  EXPECT_TRUE(counts({.number = 3}, manifest(30, 5), "x"));
}

}  // namespace
}  // namespace ddprun
