#include "rendezvous/protocol/core/verdict.h"

#include <gtest/gtest.h>

#include <csignal>

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

WorkerEnd raised(std::string message, std::vector<std::string> tail = {}) {
  return {.kind = EndKind::kExited,
          .code = 1,
          .message = std::move(message),
          .stderr_tail = std::move(tail)};
}

TEST(SameFailure, TheWordsCountAndTheirNumbersDoNot) {
  const WorkerEnd first = raised("ValueError: no file for rank 0");
  EXPECT_TRUE(is_same_failure(raised("ValueError: no file for rank 12"), first));
  EXPECT_FALSE(is_same_failure(raised("KeyError: 'x'"), first));
  EXPECT_TRUE(is_same_failure(raised("", {"Traceback", "ValueError: bad"}),
                              raised("", {"ValueError: bad"})));
  EXPECT_FALSE(is_same_failure(raised(""), raised(""))) << "nothing is known";
}

TEST(SameFailure, WhoSaidTheSameAndWasThenStoppedFailedToo) {
  WorkerEnd stopped{.kind = EndKind::kSignaled, .code = SIGTERM, .after_stop = true};
  const WorkerEnd first = raised("", {"ValueError: bad"});
  EXPECT_FALSE(is_same_failure(stopped, first));
  stopped.stderr_tail = {"ValueError: bad"};
  EXPECT_TRUE(is_same_failure(stopped, first));
  stopped.after_stop = false;
  EXPECT_FALSE(is_same_failure(stopped, first)) << "another one killed it";
}

TEST(SameFailure, TheLastLineOfAKilledRankSaysNothingOfItsEnd) {
  const WorkerEnd first{
      .kind = EndKind::kSignaled, .code = SIGKILL, .stderr_tail = {"Warning: deprecated"}};
  WorkerEnd stopped = first;
  EXPECT_TRUE(is_same_failure(stopped, first)) << "both were killed";
  stopped.after_stop = true;
  EXPECT_FALSE(is_same_failure(stopped, first));
  stopped.code = SIGTERM;
  EXPECT_FALSE(is_same_failure(stopped, first));
}

TEST(SameFailure, AVictimIsNone) {
  WorkerEnd victim = raised("rank 1 is gone");
  victim.blames = 1;
  EXPECT_FALSE(is_same_failure(victim, raised("rank 1 is gone")));
}

}  // namespace
}  // namespace ddprun
