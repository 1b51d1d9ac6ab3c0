#include "launcher/supervisor/core/failure_attribution.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(FailureAttribution, NameTheRankThatIsGone) {
  for (const char* words :
       {"all_reduce: rank 3 closed its connection", "rank 3 died (its process has ended)",
        "peer 3 closed", "DistError: barrier: rank 3 is out of reach (its node has not answered)",
        "rank 3 has left the group", "rank 3 is gone", "Peer 3 closed",
        "Rank 3 closed its connection", "peer 3: closed", "connection closed by rank 3",
        "RANK 3 DIED", "[Rank 0]: Rank 3 failed to pass monitoredBarrier in 1000 ms",
        "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 3. Please check rank 3 logs for faulty rank."}) {
    EXPECT_EQ(blamed_rank(words, {}), Rank(3)) << words;
    EXPECT_EQ(blamed_rank("", {"step 9", words}), Rank(3)) << words;
  }
}

TEST(FailureAttribution, WhatIsNoAccusationIsNone) {
  for (const char* words :
       {"rank 3 has step 9", "rank three died", "Frank 3", "rank 3", "rank  3 died",
        "rank 33333333333333333333 died", "Frank 3 died",
        "Connection closed by peer [127.0.0.1]:4711", "[Rank 3]: monitoredBarrier",
        "[Rank 3] closed the file", "world size 3 closed", ""}) {
    EXPECT_EQ(blamed_rank(words, {words}), std::nullopt) << words;
  }
}

TEST(FailureAttribution, WhoNamesSeveralOrNamedOneLongAgoBlamesNobody) {
  EXPECT_EQ(blamed_rank("rank 1 died, rank 2 died", {}), std::nullopt);
  EXPECT_EQ(blamed_rank("", {"rank 1 died", "a", "b", "c"}), std::nullopt);
  EXPECT_EQ(blamed_rank("rank 1 died", {"rank 2 died"}), Rank(1)) << "the error file is surer";
}

}  // namespace
}  // namespace ddprun
