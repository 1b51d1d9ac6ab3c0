#include "rendezvous/protocol/core/verdict.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

// Returns the verdict as a version before `cause` has written it, with what is inferred.
Verdict inferred(Verdict older) {
  older.cause = VerdictCause::kFailure;
  older.not_restarted_because.clear();
  infer_cause(older);
  return older;
}

TEST(Verdict, OfAnOlderVersionIsInferredAsItIsMadeNow) {
  const Verdict stopped = stopped_verdict(143, "ada asked for it");
  EXPECT_EQ(stopped.headline, "the job was stopped: ada asked for it");
  EXPECT_EQ(inferred(stopped), stopped);
  Verdict failed{.exit_code = 3, .headline = "rank 0 exited with code 3", .ends = {WorkerEnd{}}};
  EXPECT_EQ(inferred(failed), failed);
  set_not_restarted(failed, "its training is done");
  EXPECT_EQ(failed.headline, "rank 0 exited with code 3; not restarted: its training is done");
  EXPECT_EQ(inferred(failed), failed);
  const Verdict alone{.cause = VerdictCause::kTooFewNodes,
                      .exit_code = 65,
                      .headline = "not enough nodes within 10.0 s"};
  EXPECT_EQ(inferred(alone), alone);
}

}  // namespace
}  // namespace ddprun
