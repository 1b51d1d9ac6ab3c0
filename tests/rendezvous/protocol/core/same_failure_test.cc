#include "rendezvous/protocol/core/same_failure.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ddprun {
namespace {

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

TEST(SameFailure, AVictimIsNone) {
  WorkerEnd victim = raised("rank 1 is gone");
  victim.blames = 1;
  EXPECT_FALSE(is_same_failure(victim, raised("rank 1 is gone")));
}

}  // namespace
}  // namespace ddprun
