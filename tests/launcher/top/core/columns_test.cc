#include "launcher/top/core/columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "launcher/top/core/printable_text.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Returns the number of the column of this name.
std::size_t column(std::string_view name) {
  for (std::size_t i = 0; i < kColumns; ++i) {
    if (column_name(i) == name) return i;
  }
  ADD_FAILURE() << name;
  return 0;
}

// A rank with a value in each column.
TopRow full_row() {
  TopRow row;
  row.rank = 12;
  row.node = 1;
  row.host = "node-with-a-long-name.cluster.example.org";
  row.local_rank = 4;
  row.pid = 4711;
  row.state = "running";
  row.step = 1200;
  row.steps_per_second = 12.5;
  row.lag = 3;
  row.waiting_s = 9.64;
  row.collective = "all_reduce 4711";
  row.cpu_percent = 99.6;
  row.memory_bytes = 3ll << 30;
  row.gpu_percent = 40;
  row.gpu_memory_bytes = 70ll << 30;
  row.gpu_own_memory_bytes = 60ll << 30;
  row.limits = "data 62 %, backward 30 %, other 8 %";
  row.restarts = 2;
  row.slow = "12 % slower than the others, for 40 steps";
  return row;
}

std::vector<std::string> names(const std::vector<Column>& columns) {
  std::vector<std::string> all;
  for (const Column& one : columns) all.emplace_back(column_name(one.column));
  return all;
}

TEST(Columns, ShowEachFieldForPeople) {
  const Cells cells = cells_of(full_row());
  const std::vector<Column> columns = place_columns({&cells, 1}, 1000);
  EXPECT_EQ(columns.size(), kColumns);
  const std::string line = line_of(cells, columns);
  EXPECT_THAT(line,
              HasSubstr("  1  node-with-a-long-name.c~      4  4711  running  1200     12.5"));
  EXPECT_THAT(line,
              HasSubstr("    3  9.6 s  all_reduce 4711   100  3.0 GiB    40  70.0 GiB  60.0 GiB"));
  EXPECT_EQ(header_of(columns).find("STATE"), line.find("running")) << "texts begin together";
  EXPECT_EQ(header_of(columns).find("LAG"), line.find("  3  9.6 s")) << "numbers end together";
}

TEST(Columns, OfWhichNoRankHasAValueAreLeftOut) {
  TopRow row;
  row.state = "running";
  const std::vector<Cells> cells{cells_of(row)};
  EXPECT_THAT(names(place_columns(cells, 80)), ElementsAre("RANK", "STATE"));
  EXPECT_TRUE(place_columns({}, 80).empty());
}

TEST(Columns, FitIntoEveryWidth) {
  const Cells cells = cells_of(full_row());
  std::size_t count = 0;
  for (std::size_t width = 10; width <= 280; ++width) {
    const std::vector<Column> columns = place_columns({&cells, 1}, width);
    EXPECT_LE(width_of(line_of(cells, columns)), width) << width;
    EXPECT_LE(width_of(header_of(columns)), width) << width;
    EXPECT_GE(columns.size(), count) << "a wider terminal shows no fewer columns";
    count = columns.size();
  }
  EXPECT_EQ(count, kColumns);
  EXPECT_THAT(names(place_columns({&cells, 1}, 60)),
              ElementsAre("RANK", "STATE", "STEP", "LAG", "WAITS", "COLLECTIVE", "SLOW"));
}

TEST(Columns, CompareNumbersFromTheLargestAndIdsFromTheSmallest) {
  TopRow low;
  low.rank = 1;
  low.step = 7;
  low.host = "a";
  TopRow high = low;
  high.rank = 2;
  high.step = 9;
  high.host = "b";
  EXPECT_LT(compared(low, high, column("RANK")), 0);
  EXPECT_GT(compared(low, high, column("STEP")), 0);
  EXPECT_LT(compared(low, high, column("HOST")), 0);
  EXPECT_EQ(compared(low, high, column("LAG")), 0) << "neither is known";
  high.step.reset();
  EXPECT_LT(compared(low, high, column("STEP")), 0) << "what is not known comes last";
  EXPECT_GT(compared(high, low, column("STEP")), 0);
}

TEST(Columns, TroubleIsADeadRankThenASlowOneThenLag) {
  TopRow fine;
  fine.state = "running";
  fine.waiting_s = 5;
  TopRow late = fine;
  late.waiting_s = 0;
  TopRow lagging = fine;
  lagging.lag = 2;
  TopRow slow = fine;
  slow.slow = "10 % slower";
  TopRow dead = fine;
  dead.state = "killed by SIGKILL";
  const std::vector<TopRow> worst_first{dead, slow, lagging, late, fine};
  for (std::size_t i = 0; i < worst_first.size(); ++i) {
    EXPECT_EQ(compared_by_trouble(worst_first[i], worst_first[i]), 0);
    for (std::size_t j = i + 1; j < worst_first.size(); ++j) {
      EXPECT_LT(compared_by_trouble(worst_first[i], worst_first[j]), 0) << i << " " << j;
      EXPECT_GT(compared_by_trouble(worst_first[j], worst_first[i]), 0) << i << " " << j;
    }
  }
  EXPECT_TRUE(is_in_trouble(dead) && is_in_trouble(slow));
  EXPECT_FALSE(is_in_trouble(lagging)) << "a step of difference is usual";
}

TEST(Columns, HostileValuesStayInTheirColumn) {
  TopRow row = full_row();
  row.host = "\x1b[2Jevil\r\n" + std::string(5000, 'x');
  row.collective = "\xff\x9b";
  row.cpu_percent = 1e308;
  row.waiting_s = -1;
  row.memory_bytes = -5;
  row.gpu_memory_bytes = INT64_MAX;
  row.step = INT64_MIN;
  const Cells cells = cells_of(row);
  const std::string line = line_of(cells, place_columns({&cells, 1}, 200));
  EXPECT_LE(width_of(line), 200u);
  EXPECT_THAT(line, Not(HasSubstr("\x1b")));
  EXPECT_THAT(line, HasSubstr("?[2Jevil??"));
}

}  // namespace
}  // namespace ddprun
