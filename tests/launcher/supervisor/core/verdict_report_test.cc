#include "launcher/supervisor/core/verdict_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace ddprun {
namespace {

using testing::HasSubstr;

WorkerEnd worker(int rank, EndKind kind, int code, int age_ms) {
  WorkerEnd end{.kind = kind, .code = code};
  end.rank = Rank(rank);
  end.local_rank = LocalRank(rank);
  end.host = "node0";
  end.pid = 100 + rank;
  end.age = std::chrono::milliseconds(age_ms);
  return end;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(FailureReport, TellsTheFirstFailureItsLastLinesAndWhatTheOthersAre) {
  Verdict verdict{.success = false, .exit_code = 137, .headline = "h"};
  verdict.generation = Generation(3);
  verdict.restarts_used = 3;
  verdict.max_restarts = 3;
  verdict.ends = {worker(1, EndKind::kSignaled, SIGKILL, 50), worker(2, EndKind::kExited, 1, 40),
                  worker(0, EndKind::kSignaled, SIGTERM, 10)};
  verdict.ends[0].stderr_tail = {"step 99", "out of luck"};
  verdict.ends[0].message = "RuntimeError: boom";
  verdict.ends[2].after_stop = true;
  EXPECT_EQ(
      joined(failure_report("job1", verdict)),
      "job 'job1' failed after 3 of 3 restarts in generation 3\n"
      "first failure: rank 1 (local rank 1 on node0, pid 101) was killed by SIGKILL\n"
      "  its message: RuntimeError: boom\n"
      "  its last lines on stderr:\n"
      "    | step 99\n"
      "    | out of luck\n"
      "  hint: it was killed by the kernel for want of memory (dmesg, the cgroup's memory.events), "
      "or by kill -9\n"
      "the others, probably its victims:\n"
      "  rank 2 (local rank 2 on node0, pid 102) exited with code 1, 10 ms after the first\n"
      "  rank 0 (local rank 0 on node0, pid 100) was killed by SIGTERM when ddprun stopped it\n"
      "exit code 137 (128 + 9, SIGKILL)\n");
}

// This also holds for a generation that another one follows.
TEST(FailureReport, NamesAllThatMayHaveBeenTheFirst) {
  Verdict verdict{.success = false, .exit_code = 3, .headline = "h"};
  verdict.generation = Generation(1);
  verdict.ends = {worker(1, EndKind::kExited, 3, 50), worker(2, EndKind::kExited, 4, 35),
                  worker(0, EndKind::kExited, 1, 29)};
  for (WorkerEnd& end : verdict.ends) {
    end.host = "node" + to_text(end.rank);
    end.node_rank = NodeRank(end.rank.value);
  }
  verdict.ends[2].blames = 1;
  EXPECT_EQ(joined(restart_report(verdict)),
            "generation 1 failed\n"
            "first failure: rank 1 (local rank 1 on node1, pid 101) exited with code 3\n"
            "or, at about the same time: rank 2 (local rank 2 on node2, pid 102) "
            "exited with code 4\n"
            "the others, probably its victims:\n"
            "  rank 0 (local rank 0 on node0, pid 100) exited with code 1 and blames rank 1, 21 ms "
            "after the first\n");
}

TEST(FailureReport, WhomTheFirstBlamesIsNotItsVictim) {
  Verdict verdict{.success = false, .exit_code = 1, .headline = "h"};
  verdict.generation = Generation(1);
  verdict.ends = {worker(0, EndKind::kExited, 1, 50), worker(1, EndKind::kSignaled, SIGTERM, 29),
                  worker(2, EndKind::kSignaled, SIGTERM, 29)};
  verdict.ends[0].blames = 1;
  verdict.ends[1].after_stop = verdict.ends[2].after_stop = true;
  EXPECT_EQ(
      joined(restart_report(verdict)),
      "generation 1 failed\n"
      "first failure: rank 0 (local rank 0 on node0, pid 100) exited with code 1 and blames rank "
      "1\n"
      "blamed: rank 1 (local rank 1 on node0, pid 101) was killed by SIGTERM when "
      "ddprun stopped it\n"
      "the others:\n"
      "  rank 2 (local rank 2 on node0, pid 102) was killed by SIGTERM when ddprun stopped it\n");
  verdict.ends.pop_back();
  EXPECT_THAT(joined(restart_report(verdict)), testing::Not(HasSubstr("the others")));
}

TEST(FailureReport, ShowsWhereAnExceptionWasThrownAndWhyItWasNotRestarted) {
  Verdict verdict{.success = false, .exit_code = 2, .headline = "rank 0 exited with code 2"};
  set_not_restarted(verdict, "exit code 2 is one of --no-restart-on");
  verdict.generation = Generation(0);
  verdict.ends = {worker(0, EndKind::kExited, 2, 5)};
  verdict.ends[0].message = "ValueError: boom";
  verdict.ends[0].frames = {"File \"train.py\", line 3, in main"};
  EXPECT_EQ(joined(failure_report("j", verdict)),
            "job 'j' failed in generation 0\n"
            "first failure: rank 0 (local rank 0 on node0, pid 100) exited with code 2\n"
            "  its message: ValueError: boom\n"
            "  stack, innermost last:\n"
            "    | File \"train.py\", line 3, in main\n"
            "not restarted: exit code 2 is one of --no-restart-on\n"
            "exit code 2\n");
}

TEST(FailureReport, AJobThatEndedWithoutAWorkersFaultSaysWhy) {
  Verdict verdict{.success = false,
                  .cause = VerdictCause::kTooFewNodes,
                  .exit_code = 65,
                  .headline = "not enough nodes within 10.0 min: 1 of 2 nodes here: a"};
  EXPECT_EQ(joined(failure_report("j", verdict)),
            "job 'j' failed: not enough nodes within 10.0 min: 1 of 2 nodes here: a\n");
}

TEST(FailureReport, AJobThatWasStoppedHasNotFailed) {
  EXPECT_EQ(joined(failure_report("j", stopped_verdict(143, "why"))),
            "job 'j' ended: the job was stopped: why\n");
}

TEST(FailureReport, IsEmptyForSuccess) {
  EXPECT_TRUE(failure_report("j", Verdict{.success = true}).empty());
}

TEST(FailureReport, DoesNotListThousandsOfVictims) {
  Verdict verdict{.success = false, .exit_code = 1, .headline = "h"};
  for (int rank = 0; rank < 1000; ++rank)
    verdict.ends.push_back(worker(rank, EndKind::kExited, 1, 0));
  const std::vector<std::string> lines = failure_report("j", verdict);
  EXPECT_LT(lines.size(), 30u);
  EXPECT_THAT(joined(lines), HasSubstr("980 more"));
  verdict.ends.resize(3);
  verdict.more_ends = 997;
  EXPECT_THAT(joined(failure_report("j", verdict)), HasSubstr("997 more"));
}

TEST(VerdictReport, OfAHangItSaysWhatAllRanksDid) {
  Verdict verdict{.exit_code = 71, .headline = "h"};
  WorkerEnd hung{.kind = EndKind::kHung, .message = "it has not come to barrier (collective 3)"};
  hung.host = "h";
  hung.frames = {"main", "load"};
  verdict.ends = {hung};
  verdict.seen = {"rank 0: in no collective", "ranks 1-3: in barrier (collective 3)"};
  const std::vector<std::string> lines = failure_report("j", verdict);
  EXPECT_THAT(lines,
              testing::Contains("first failure: rank 0 (local rank 0 on h) hangs: it has not "
                                "come to barrier (collective 3)"));
  EXPECT_THAT(lines, testing::Contains("    | load"));
  EXPECT_THAT(lines, testing::Contains("what all ranks were doing:"));
  EXPECT_THAT(lines, testing::Contains("  ranks 1-3: in barrier (collective 3)"));
  EXPECT_THAT(lines, testing::Not(testing::Contains(testing::HasSubstr("its message"))));
}

TEST(VerdictReport, RestartsThatDidNotCountAreNotSetAgainstTheBudget) {
  EXPECT_EQ(restarts_of({.restarts_used = 2, .max_restarts = 3}), "2 of 3 restarts");
  EXPECT_EQ(restarts_of({.restarts_used = 7, .max_restarts = 3}), "7 restarts");
}

TEST(FailureReport, OfAHangTheStackOfEachCandidateIsTold) {
  Verdict verdict{.success = false, .exit_code = 71, .headline = "h"};
  verdict.ends = {worker(1, EndKind::kHung, 0, 9), worker(2, EndKind::kHung, 0, 9)};
  verdict.ends[0].frames = {"load (a.py:1)"};
  verdict.ends[1].frames = {"save (b.py:2)"};
  EXPECT_THAT(joined(restart_report(verdict)),
              HasSubstr("hangs: \n  stack, innermost last:\n    | load (a.py:1)\n"
                        "or, at about the same time: rank 2 (local rank 2 on node0, pid 102) "
                        "hangs: \n  stack, innermost last:\n    | save (b.py:2)\n"));
}

TEST(FailureReport, RanksThatRaiseTheSameAreNoVictims) {
  Verdict verdict{.success = false, .exit_code = 1, .headline = "h"};
  verdict.ends = {worker(1, EndKind::kExited, 1, 50), worker(0, EndKind::kExited, 1, 40),
                  worker(2, EndKind::kSignaled, SIGTERM, 30)};
  for (WorkerEnd& end : verdict.ends) end.stderr_tail = {"ValueError: bad"};
  verdict.ends[2].after_stop = true;
  const std::string text = joined(restart_report(verdict));
  EXPECT_THAT(text, HasSubstr("failed in the same way:\n  rank 0 (local rank 0 on node0, pid 100) "
                              "exited with code 1, 10 ms after the first\n  rank 2 "));
  EXPECT_THAT(text, testing::Not(HasSubstr("victims")));
}

TEST(FailureReport, ATracebackIsToldOnce) {
  Verdict verdict{.success = false, .exit_code = 1, .headline = "h"};
  verdict.ends = {worker(1, EndKind::kExited, 1, 50)};
  WorkerEnd& end = verdict.ends[0];
  end.message = "ValueError: boom";
  end.frames = {"File \"train.py\", line 3, in main"};
  end.stderr_tail = {"loading",
                     "Traceback (most recent call last):", "  File \"train.py\", line 3, in main",
                     "ValueError: boom", "bye"};
  EXPECT_THAT(joined(restart_report(verdict)),
              HasSubstr("  its last lines on stderr:\n    | loading\n    | bye\n"));
  end.stderr_tail.erase(end.stderr_tail.begin(), end.stderr_tail.begin() + 2);
  EXPECT_THAT(joined(restart_report(verdict)),
              HasSubstr("  its last lines on stderr:\n    | bye\n"))
      << "its beginning is cut off";
  end.stderr_tail = {"RuntimeError: another"};
  EXPECT_THAT(joined(restart_report(verdict)), HasSubstr("    | RuntimeError: another\n"));
}

}  // namespace
}  // namespace ddprun
