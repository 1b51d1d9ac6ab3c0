// Tests what `ddprun stacks` prints of the lines that agents send.
#include "launcher/control/stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "launcher/control/protocol.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string line_of(int rank, const std::string& doing, const std::vector<std::string>& frames) {
  WorkerSnapshot worker{.rank = Rank(rank), .host = "n0", .pid = 100 + rank};
  worker.doing = doing;
  worker.frames = frames;
  return stack_line(worker);
}

TEST(StackShow, RanksAtTheSamePlaceStandTogetherAndTheLargestGroupComesFirst) {
  StackShow stacks;
  stacks.take(line_of(1, "runs", {"main () at a.cc:1", "load (path=0x1) at a.cc:7"}));
  stacks.take_page(line_of(3, "sleeps", {"main () at a.cc:1", "wait (mask=3) at a.cc:9"}) + "\n" +
                   line_of(0, "sleeps", {"main () at a.cc:1", "wait (mask=4) at a.cc:9"}) + "\n");
  stacks.take(line_of(2, "sleeps", {"main () at a.cc:1", "wait (mask=5) at a.cc:9"}));
  EXPECT_EQ(stacks.as_text(),
            "ranks 0,2-3: sleeps\n"
            "    main at a.cc:1\n"
            "    wait at a.cc:9\n"
            "\n"
            "rank 1: runs\n"
            "    main () at a.cc:1\n"
            "    load (path=0x1) at a.cc:7\n");
}

TEST(StackShow, ACallOfTheFlightRecordIsNamed) {
  WorkerSnapshot worker{.rank = Rank(0)};
  worker.call = "all_reduce of 4 bytes";
  worker.waited = std::chrono::seconds(12);
  worker.frames = {"main () at a.cc:1"};
  StackShow stacks;
  stacks.take(stack_line(worker));
  EXPECT_THAT(stacks.as_text(), HasSubstr("rank 0: in all_reduce of 4 bytes for 12.0 s\n"));
}

TEST(StackShow, WithoutAStackItSaysWhyThereIsNone) {
  WorkerSnapshot stopped{.rank = Rank(1)};
  stopped.doing = "state T, stopped";
  stopped.is_stopped = true;
  StackShow stacks;
  stacks.take(line_of(0, "sleeps in do_wait", {}));
  stacks.take(stack_line(stopped));
  EXPECT_THAT(
      stacks.as_text(),
      AllOf(HasSubstr("rank 0: sleeps in do_wait\n    no stack: gdb (Python: py-spy) must be"),
            HasSubstr("rank 1: state T, stopped\n    no stack: a debugger would let the")));
}

TEST(StackShow, KeepsWhatIsMissing) {
  StackShow stacks;
  stacks.take(missing_line("rank 3", "it has ended"));
  stacks.take(dropped_line(7));
  EXPECT_FALSE(stacks.has_any());
  EXPECT_THAT(stacks.missing(),
              ElementsAre("rank 3: it has ended", HasSubstr("stacks are missing")));
}

TEST(StackShow, KnowsFramesOfTheInterpreter) {
  StackShow stacks;
  stacks.take(line_of(0, "runs", {"main () at a.cc:1"}));
  EXPECT_FALSE(stacks.has_interpreter());
  stacks.take(line_of(1, "runs", {"_PyEval_EvalFrameDefault (a=1) at ceval.c:4769", "sleep ()"}));
  EXPECT_TRUE(stacks.has_interpreter());
}

TEST(StackShow, LinesOfAnotherKindAreIgnored) {
  StackShow stacks;
  for (const char* other : {"", "{", "[]", "{\"frames\":1}", "{\"frames\":[],\"rank\":\"x\"}",
                            "{\"frames\":[1],\"rank\":0}"}) {
    stacks.take(other);
  }
  EXPECT_FALSE(stacks.has_any());
  EXPECT_TRUE(stacks.missing().empty());
}

TEST(StackShow, JsonHasTheRanksInOrder) {
  StackShow stacks;
  stacks.take(line_of(1, "runs", {"a"}));
  stacks.take(line_of(0, "runs", {"b"}));
  const nlohmann::json shown = stacks.as_json();
  ASSERT_EQ(shown["ranks"].size(), 2u);
  EXPECT_EQ(shown["ranks"][0]["pid"], 100);
  EXPECT_EQ(shown["ranks"][0]["frames"][0], "b");
  EXPECT_EQ(shown["ranks"][1]["host"], "n0");
}

}  // namespace
}  // namespace ddprun
