#include "launcher/top/core/screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>
#include <utility>

#include "launcher/top/core/printable_text.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Action = TopScreen::Action;

// Makes a job of that many ranks, of which rank 1 is stopped and rank 2 lags.
JobView job_of(std::int64_t ranks) {
  JobView view{.id = "train", .phase = "running", .generation = 2};
  view.progress = {.step = 1200, .total_steps = 10'000, .steps_per_second = 12.5};
  view.progress.left = std::chrono::minutes(12);
  view.restarts_used = 1;
  view.max_restarts = 3;
  view.last_failure = "rank 0 exited with code 7";
  for (std::int64_t i = 0; i < ranks; ++i) {
    TopRow row;
    row.rank = i;
    row.pid = 4000 + i;
    row.host = "node" + std::to_string(i / 8);
    row.state = i == 1 ? "stopped" : "running";
    row.step = i == 2 ? 1197 : 1200;
    row.lag = 1200 - *row.step;
    row.cpu_percent = static_cast<double>(i % 100);
    row.memory_bytes = i << 20;
    view.ranks.push_back(row);
  }
  return view;
}

class TopScreenTest : public testing::Test {
 protected:
  TopScreenTest() { screen_.show(job_of(20)); }

  Action press(std::string_view bytes) {
    Action last = Action::kNone;
    for (const Key& key : keys_of(bytes)) last = screen_.press(key);
    return last;
  }
  std::vector<std::string> lines(ScreenSize size = {.columns = 100, .rows = 12}) {
    std::vector<std::string> all;
    for (const TopLine& line : screen_.lines(size)) all.push_back(line.text);
    return all;
  }
  // Returns the ranks that are shown, from the top.
  std::vector<int> ranks(ScreenSize size = {.columns = 100, .rows = 12}) {
    const std::vector<std::string> all = lines(size);
    const auto header = std::ranges::find_if(
        all, [](const std::string& line) { return line.find("RANK ") != std::string::npos; });
    std::vector<int> found;
    for (auto line = header + 1; line + 1 < all.end() && !line->empty(); ++line) {
      found.push_back(std::stoi(*line));
    }
    return found;
  }

  TopScreen screen_;
};

TEST_F(TopScreenTest, TellsOfTheJobFirst) {
  const std::vector<std::string> seen = lines({.columns = 120, .rows = 12});
  ASSERT_EQ(seen.size(), 12u) << "the whole terminal";
  EXPECT_EQ(seen[0],
            "job 'train': running, generation 2 | step 1,200 of 10,000, 12.5 steps/s, about 12 min "
            "left | restarts: 1 of 3 used");
  EXPECT_EQ(seen[1], "last failure: rank 0 exited with code 7");
  EXPECT_EQ(seen[2], "20 ranks by trouble");
  EXPECT_THAT(seen[3], StartsWith("RANK  HOST"));
  EXPECT_THAT(seen.back(), StartsWith("q quit  s sort  r reverse  / filter"));
  JobView view = job_of(20);
  view.ranks_left_out = 7;
  screen_.show(view);
  EXPECT_EQ(lines()[2], "20 ranks by trouble | 7 more do not fit");
  screen_.set_note("no answer");
  EXPECT_EQ(lines()[2], "no answer");
}

// The reason of a failure is at the end of a long line.
TEST_F(TopScreenTest, OnATallTerminalLongLinesGoOnInFurtherRows) {
  JobView view = job_of(20);
  view.last_failure =
      "rank 1 (local rank 1 on vm, pid 25752) exited with code 1: train_digits: "
      "write run/step-80.pt: No space left on device";
  screen_.show(view);
  const std::vector<std::string> seen = lines({.columns = 80, .rows = 24});
  EXPECT_EQ(seen[1], "  12 min left | restarts: 1 of 3 used");
  EXPECT_THAT(seen[2], StartsWith("last failure: rank 1 (local rank 1 on vm, pid 25752)"));
  EXPECT_THAT(seen[3], testing::EndsWith("No space left on device"));
  EXPECT_EQ(seen[4], "20 ranks by trouble");
  view.last_failure = std::string(50, 'x');
  for (int i = 0; i < 20; ++i) view.last_failure += " " + std::string(50, 'x');
  screen_.show(view);
  EXPECT_THAT(lines({.columns = 80, .rows = 24})[5], testing::EndsWith("xxx~"));
  EXPECT_EQ(lines({.columns = 80, .rows = 24})[6], "20 ranks by trouble");
  EXPECT_EQ(lines({.columns = 80, .rows = 19})[2], "20 ranks by trouble");
}

TEST_F(TopScreenTest, LongLinesLeaveHalfOfTheTerminalToTheRanks) {
  JobView view = job_of(20);
  for (int i = 0; i < 50; ++i) view.goodput += "goodput ";
  view.last_failure = view.outcome = view.phase = view.goodput;
  screen_.show(view);
  const std::vector<std::string> seen = lines({.columns = 80, .rows = 24});
  EXPECT_EQ(seen[12], "20 ranks by trouble");
  EXPECT_EQ(screen_.selected(), 1);
}

TEST_F(TopScreenTest, SaysHowLongTheGenerationRuns) {
  JobView view = job_of(2);
  view.generation_age = std::chrono::milliseconds(2100);
  screen_.show(view);
  EXPECT_THAT(lines()[0], StartsWith("job 'train': running, generation 2 for 2.1 s | step 1,200"));
}

TEST_F(TopScreenTest, NamesSlowRanks) {
  JobView view = job_of(6);
  view.ranks[4].slow = "the others wait 16 %\x1b[2J";
  screen_.show(view);
  EXPECT_EQ(lines()[2], "rank 4 is slow: the others wait 16 %?[2J");
  view.ranks[3].slow = view.ranks[5].slow = view.ranks[4].slow;
  std::swap(view.ranks[3], view.ranks[5]);
  screen_.show(view);
  EXPECT_EQ(lines()[2], "ranks 3-5 are slow");
  for (TopRow& row : view.ranks) row.rank = -1;
  screen_.show(view);
  EXPECT_EQ(lines()[2], "6 ranks by trouble") << "such ranks do not exist";
}

TEST_F(TopScreenTest, NamesRanksThatWaitForLongAndThoseThatDoNot) {
  JobView view = job_of(6);
  for (const std::size_t i : {0u, 2u, 3u, 4u}) view.ranks[i].waiting_s = 10.0;
  view.ranks[5].waiting_s = 9.9;
  std::swap(view.ranks[0], view.ranks[3]);
  screen_.show(view);
  EXPECT_EQ(lines()[2],
            "ranks 0,2-4 have waited 10 s or longer in a collective; ranks 1,5 have not");
  for (TopRow& row : view.ranks) row.waiting_s.reset();
  view.ranks[1].waiting_s = 99;
  view.ranks.resize(2);
  screen_.show(view);
  EXPECT_EQ(lines()[2], "rank 1 has waited 10 s or longer in a collective; rank 3 has not");
  view.ranks[0].waiting_s = 99;
  screen_.show(view);
  EXPECT_EQ(lines()[2], "ranks 1,3 have waited 10 s or longer in a collective");
  view.ranks_left_out = 2;
  screen_.show(view);
  EXPECT_EQ(lines()[2],
            "ranks 1,3 have waited 10 s or longer in a collective; 2 ranks are not shown");
  view.ranks_left_out = 1;
  screen_.show(view);
  EXPECT_THAT(lines()[2], testing::EndsWith("in a collective; 1 rank is not shown"));
  view.ranks_left_out = 0;
  view.ranks[0].rank = std::numeric_limits<std::int64_t>::max();
  view.ranks[1].rank = -1;
  screen_.show(view);
  EXPECT_EQ(lines()[2], "2 ranks by trouble") << "such ranks do not exist";
}

TEST_F(TopScreenTest, SaysWhatIsWrongWithLogFiles) {
  JobView view = job_of(2);
  view.log_trouble = "node0: log files are not written\x1b[1m";
  screen_.show(view);
  EXPECT_EQ(lines()[2], printable_text(view.log_trouble));
}

TEST_F(TopScreenTest, WhoIsInTroubleComesFirst) {
  EXPECT_EQ(ranks(), (std::vector{1, 2, 0, 3, 4, 5, 6}));
  EXPECT_EQ(screen_.selected(), 1);
  press("r");
  EXPECT_EQ(ranks().front(), 0) << "reversed; equal ranks stay in their order";
  EXPECT_EQ(lines()[2], "20 ranks by trouble, reversed");
}

TEST_F(TopScreenTest, SortsByEachColumnInTurn) {
  press("s");
  EXPECT_EQ(lines()[2], "20 ranks by rank");
  EXPECT_EQ(ranks().front(), 0);
  press("r");
  EXPECT_EQ(ranks().front(), 19);
  std::vector<std::string> orders;
  for (int i = 0; i < 8; ++i) {
    press("s");
    orders.push_back(lines()[2]);
    if (orders.back() == "20 ranks by memory") {
      EXPECT_EQ(ranks().front(), 19);
    }
  }
  EXPECT_EQ(orders,
            (std::vector<std::string>{"20 ranks by host", "20 ranks by pid", "20 ranks by state",
                                      "20 ranks by step", "20 ranks by lag", "20 ranks by cpu%",
                                      "20 ranks by memory", "20 ranks by trouble"}))
      << "only columns with values";
}

TEST_F(TopScreenTest, FiltersByWordsWhileTheyAreTyped) {
  press("/NODE1 run");
  EXPECT_EQ(lines()[2], "8 of 20 ranks by trouble | filter: NODE1 run");
  EXPECT_EQ(lines().back(), "/NODE1 run_  (Enter: done, Esc: all ranks)");
  EXPECT_EQ(press("q"), Action::kNone) << "it is text";
  EXPECT_EQ(lines()[2], "0 of 20 ranks by trouble | filter: NODE1 runq");
  EXPECT_EQ(screen_.selected(), std::nullopt);
  press("\x7f\r");
  EXPECT_EQ(ranks().size(), 7u) << "as many as fit";
  EXPECT_EQ(press("l"), Action::kLogs);
  press("\x1b");
  EXPECT_EQ(lines()[2], "20 ranks by trouble");
  press("/stopped\r");
  EXPECT_EQ(ranks(), (std::vector{1})) << "a state is a word, too";
  press("/\x1b/ü\x7f");
  EXPECT_EQ(lines()[2], "20 ranks by trouble") << "Backspace takes both bytes";
}

TEST_F(TopScreenTest, WithoutARankThereIsNothingToAskFor) {
  press("/none\r");
  EXPECT_EQ(press("l"), Action::kNone);
  EXPECT_EQ(press("t"), Action::kNone);
  EXPECT_EQ(press("j"), Action::kNone);
  EXPECT_EQ(press("q"), Action::kQuit);
  screen_.show({});
  EXPECT_EQ(lines().size(), 12u);
  EXPECT_EQ(press("jGs\x1b[6~f"), Action::kNone);
}

TEST_F(TopScreenTest, TheSelectedRankStaysSelected) {
  press("jj");
  EXPECT_EQ(screen_.selected(), 0) << "the third row";
  EXPECT_EQ(press("t"), Action::kStacks);
  EXPECT_EQ(press("f"), Action::kFlight);
  press("ssr");
  EXPECT_EQ(screen_.selected(), 0) << "in another order";
  screen_.show(job_of(10));
  EXPECT_EQ(screen_.selected(), 0) << "in another view";
  press("G\x1b[B");
  const auto last = screen_.selected();
  screen_.show(job_of(3));
  EXPECT_NE(screen_.selected(), last) << "it is gone";
  EXPECT_NE(screen_.selected(), std::nullopt);
}

TEST_F(TopScreenTest, ScrollsSoThatTheSelectedRankIsSeen) {
  press("s");
  lines();  // a page has as many rows as were shown
  press("\x1b[6~");
  EXPECT_EQ(screen_.selected(), 7);
  EXPECT_EQ(ranks(), (std::vector{1, 2, 3, 4, 5, 6, 7}));
  press("G");
  EXPECT_EQ(ranks(), (std::vector{13, 14, 15, 16, 17, 18, 19}));
  press("k");
  EXPECT_EQ(ranks().front(), 13) << "it is on the screen";
  press("g");
  EXPECT_EQ(ranks().front(), 0);
  EXPECT_EQ(ranks({.columns = 100, .rows = 40}).size(), 20u) << "a larger terminal";
}

TEST_F(TopScreenTest, FitsIntoEveryTerminal) {
  JobView view = job_of(30);
  view.goodput = std::string(500, 'g');
  view.id = "\x1b[2J\r\nevil\xff";
  view.outcome = "\x9bm";
  view.ranks[3].state = "\x1b]0;title\a";
  screen_.show(view);
  screen_.set_note("\x1b[1m");
  for (int columns = 1; columns <= 210; columns += 3) {
    for (const int rows : {1, 2, 3, 5, 8, 24, 60}) {
      const std::vector<std::string> seen = lines({.columns = columns, .rows = rows});
      ASSERT_EQ(seen.size(), static_cast<std::size_t>(rows));
      for (const std::string& line : seen) {
        EXPECT_LE(width_of(line), static_cast<std::size_t>(columns));
        EXPECT_EQ(printable_text(line), line);
      }
    }
  }
  EXPECT_THAT(screen_.text(), Not(HasSubstr("\x1b")));
}

TEST_F(TopScreenTest, AsTextItHasAllRanks) {
  const std::string text = screen_.text();
  EXPECT_THAT(text, StartsWith("job 'train': running, generation 2"));
  EXPECT_EQ(std::ranges::count(text, '\n'), 23);
  EXPECT_THAT(text, Not(HasSubstr(" \n")));
}

// Four times as many ranks take about four times as long, and sixteen times if the time grows with
// the square. The processor time counts, because a busy machine stops the test now and then. It
// disturbs caches, too, so the best of several tries counts.
TEST_F(TopScreenTest, TheTimeForThousandsOfRanksIsNotQuadratic) {
  press("/node r");
  const auto time_for = [&](int ranks) {
    JobView view = job_of(ranks);
    for (TopRow& row : view.ranks) row.collective = "all_reduce 4711";
    auto best = std::numeric_limits<std::clock_t>::max();
    for (int i = 0; i < 5; ++i) {
      const std::clock_t begun = std::clock();
      screen_.show(view);
      EXPECT_EQ(lines({.columns = 200, .rows = 60}).size(), 60u);
      best = std::min(best, std::clock() - begun);
    }
    return best;
  };
  const auto fewer = time_for(1000);
  EXPECT_LT(time_for(4000), 9 * fewer);
}

}  // namespace
}  // namespace ddprun
