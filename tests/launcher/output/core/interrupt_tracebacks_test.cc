#include "launcher/output/core/interrupt_tracebacks.h"

#include <gtest/gtest.h>

#include <sstream>

namespace ddprun {
namespace {

using Lines = std::vector<std::string>;

// Returns what the filter passes to the console for this text.
std::string show(TracebackFilter& filter, const std::string& text) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    shown += filter.feed(std::string_view(text).substr(at, end - at));
    at = end;
  }
  return shown;
}

// As show(), for a process that ends after this text.
std::string whole(TracebackFilter& filter, const std::string& text) {
  std::string shown = show(filter, text);
  return shown += filter.finish();
}

std::string traceback(const std::string& place, const std::string& last = "KeyboardInterrupt") {
  return "Traceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n    "
         "main()\n" +
         place + "    work()\n    ^^^^^^\n" + last + "\n";
}
const std::string kStep = "  File \"train.py\", line 5, in step\n";
const std::string kLoad = "  File \"data.py\", line 7, in load\n";

class InterruptTracebacksTest : public testing::Test {
 protected:
  void SetUp() override { node_.begin(); }

  InterruptTracebacks node_;
  TracebackFilter rank0_{node_, Rank(0)};
  TracebackFilter rank1_{node_, Rank(1)};
  TracebackFilter rank2_{node_, Rank(2)};
};

TEST_F(InterruptTracebacksTest, ShowsTheFirstOneWholeAndSaysWhereTheOthersWere) {
  std::string shown;
  for (TracebackFilter* one : {&rank1_, &rank0_, &rank2_}) {
    shown += whole(*one, traceback(one == &rank2_ ? kLoad : kStep));
  }
  EXPECT_EQ(shown, traceback(kStep));
  EXPECT_EQ(node_.summary(), (Lines{"KeyboardInterrupt also in rank 2 at data.py:7, in load",
                                    "KeyboardInterrupt also in rank 0 at train.py:5, in step"}));
}

TEST_F(InterruptTracebacksTest, TakesManyLinesAtOnceAsWellAsOneByOne) {
  const std::string text = "saving\n" + traceback(kStep) + "saved\n" + traceback(kLoad);
  EXPECT_EQ(rank0_.feed(text), "saving\n" + traceback(kStep) + "saved\n");
  EXPECT_EQ(rank0_.finish(), "");
}

TEST_F(InterruptTracebacksTest, LetsEverythingElsePassAtOnce) {
  EXPECT_EQ(show(rank0_, "step 1\n\n  10%|#\n"), "step 1\n\n  10%|#\n");
  EXPECT_EQ(show(rank0_, "saving\n" + traceback(kStep) + "saved\n"),
            "saving\n" + traceback(kStep) + "saved\n");
  EXPECT_EQ(show(rank1_, "saving\n" + traceback(kStep) + "saved\n"), "saving\nsaved\n");
}

TEST_F(InterruptTracebacksTest, HoldsNothingOfATracebackBackWhoseEndIsAnotherException) {
  for (TracebackFilter* one : {&rank0_, &rank1_}) {
    const std::string text = traceback(kStep, "RuntimeError: disk full");
    EXPECT_EQ(whole(*one, text), text);
  }
  EXPECT_TRUE(node_.summary().empty());
}

TEST_F(InterruptTracebacksTest, JudgesAChainByItsLastException) {
  const std::string during =
      "\nDuring handling of the above exception, another exception occurred:\n\n";
  whole(rank0_, traceback(kStep));
  const std::string interrupted_last = traceback(kStep, "queue.Empty") + during + traceback(kLoad);
  EXPECT_EQ(whole(rank1_, interrupted_last), "");
  const std::string failed_last =
      traceback(kStep) + during + traceback(kLoad, "OSError: [Errno 5]");
  EXPECT_EQ(whole(rank2_, failed_last), failed_last);
}

TEST_F(InterruptTracebacksTest, KnowsTheHeadlinesOfChildrenAndDestructors) {
  for (const std::string headline :
       {"Process SpawnProcess-1:\n", "Exception ignored in: <function Loader.__del__ at 0x7f>\n"}) {
    EXPECT_EQ(show(rank0_, headline + "other\n"), headline + "other\n");
    whole(rank0_, traceback(kStep));
    EXPECT_EQ(whole(rank1_, headline + traceback(kStep, "KeyboardInterrupt: ")), "");
  }
}

TEST_F(InterruptTracebacksTest, BearsAWorkerAndItsChildWritingAtTheSameTime) {
  whole(rank0_, traceback(kStep));
  const std::string mixed = "Traceback (most recent call last):\n" + kStep +
                            "Traceback (most recent call last):\n" + kLoad +
                            "KeyboardInterrupt\n    work()\nKeyboardInterrupt\n";
  EXPECT_EQ(whole(rank1_, mixed), "");
  const std::string with_failure = "Traceback (most recent call last):\n" + kStep +
                                   "Traceback (most recent call last):\n" + kLoad +
                                   "ValueError: 7\n    work()\nKeyboardInterrupt\n";
  EXPECT_EQ(whole(rank2_, with_failure), with_failure);
}

TEST_F(InterruptTracebacksTest, KeepsAProgressBarThatStandsOnTheSameLine) {
  whole(rank0_, traceback(kStep));
  EXPECT_EQ(whole(rank1_, " 50%|##  | 5/10" + traceback(kStep)), " 50%|##  | 5/10\n");
}

TEST_F(InterruptTracebacksTest, ReadsThroughColoursAndTheReturnsOfATerminal) {
  whole(rank0_, traceback(kStep));
  EXPECT_EQ(whole(rank1_,
                  "Traceback (most recent call last):\r\n  File \x1b[35m\"a.py\"\x1b[0m, line "
                  "\x1b[35m3\x1b[0m, in f\r\n\x1b[1;35mKeyboardInterrupt\x1b[0m\r\n"),
            "");
  EXPECT_EQ(node_.summary(), Lines{"KeyboardInterrupt also in rank 1 at a.py:3, in f"});
}

TEST_F(InterruptTracebacksTest, ShowsWhatIsCutOffOrTooLong) {
  whole(rank0_, traceback(kStep));
  const std::string cut = "Traceback (most recent call last):\n" + kStep;
  EXPECT_EQ(whole(rank1_, cut), cut);
  std::string deep = "Traceback (most recent call last):\n";
  while (deep.size() <= TracebackFilter::kMaxHeldBytes) deep += kStep;
  EXPECT_EQ(show(rank2_, deep), deep);
}

TEST_F(InterruptTracebacksTest, NamesEightPlacesAndPutsRanksTogether) {
  whole(rank0_, traceback(kStep));
  for (const int rank : {1, 2, 3, 5}) EXPECT_FALSE(node_.take(Rank(rank), "a.py:1, in f"));
  for (int rank = 10; rank < 20; ++rank) node_.take(Rank(rank), "b.py:" + std::to_string(rank));
  const Lines lines = node_.summary();
  ASSERT_EQ(lines.size(), InterruptTracebacks::kMaxPlaces + 1);
  EXPECT_EQ(lines.front(), "KeyboardInterrupt also in rank 1-3, 5 at a.py:1, in f");
  EXPECT_EQ(lines.back(), "KeyboardInterrupt also in rank 17-19 at other places");
}

TEST(InterruptTracebacks, IsNotThereBeforeTheUsersSignal) {
  InterruptTracebacks node;
  TracebackFilter filter(node, Rank(0));
  EXPECT_FALSE(filter.is_active());
  node.begin();
  EXPECT_TRUE(filter.is_active());
}

}  // namespace
}  // namespace ddprun
