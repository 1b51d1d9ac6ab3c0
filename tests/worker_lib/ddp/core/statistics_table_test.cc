// Tests the exact text of statistics().table().
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddprun/step_statistics.h"

namespace ddprun {
namespace {

using std::chrono::microseconds;
using testing::HasSubstr;
using testing::Not;

// Returns the statistics of a pass with two buckets. Times are in microseconds.
DataParallelStatistics example() {
  DataParallelStatistics of{.rank = 1,
                            .world_size = 4,
                            .backend = "cpu",
                            .module = "torch::nn::SequentialImpl",
                            .statistics_every = 1,
                            .parameters = {"0.weight", "0.bias", "2.weight", "2.bias"},
                            .parameter_bytes = 3 << 20,
                            .dtypes = {"Float", "BFloat16"},
                            .has_rebuilt_buckets = true,
                            .passes = 41};
  of.buckets = {{"Float", 1 << 20, {3, 2}}, {"Float", 2 << 20, {1, 0}}};
  of.ready_order = {3, 2, 1, 0};
  const std::vector<BucketTimes> buckets{
      {2, 1 << 20, microseconds(310), microseconds(325), microseconds(1310)},
      {2, 2 << 20, microseconds(12000), microseconds(12345), microseconds(14000)}};
  of.last = StepTimes{.pass = 41,
                      .forward = microseconds(5000),
                      .exchange = microseconds(20),
                      .backward = microseconds(14100),
                      .compute = microseconds(12340),
                      .communication = microseconds(2640),
                      .overlap = microseconds(985),
                      .exposed = microseconds(1655),
                      .buckets = buckets};
  const auto spread = [](int min, int median, int mean, int max) {
    return Spread{microseconds(min), microseconds(median), microseconds(mean), microseconds(max)};
  };
  of.recent = {.steps = 40,
               .forward = spread(4000, 5000, 5100, 9000),
               .exchange = spread(10, 20, 25, 300),
               .backward = spread(14000, 14100, 14150, 114000),
               .compute = spread(12000, 12340, 12350, 13000),
               .communication = spread(2600, 2640, 2650, 2700),
               .overlap = spread(980, 985, 990, 1000),
               .exposed = spread(1600, 1655, 1660, 1700),
               .buckets = buckets};
  return of;
}

TEST(StatisticsTable, SaysWhatThereIsAndWhatItTook) {
  EXPECT_EQ(
      example().table(),
      "rank 1 of 4 on cpu, pass 41\n"
      "4 parameters, 3.000 MiB of Float, BFloat16, in 2 buckets, laid out in the order of the "
      "first pass\n"
      "ready first: 2.bias, 2.weight, 0.bias, 0.weight\n"
      "\n"
      "ms, of 40 steps          min  median    mean      max    last\n"
      "forward                4.000   5.000   5.100    9.000   5.000\n"
      "  exchange before it   0.010   0.020   0.025    0.300   0.020\n"
      "backward              14.000  14.100  14.150  114.000  14.100\n"
      "  compute             12.000  12.340  12.350   13.000  12.340\n"
      "  communication        2.600   2.640   2.650    2.700   2.640\n"
      "    overlapped         0.980   0.985   0.990    1.000   0.985\n"
      "    exposed            1.600   1.655   1.660    1.700   1.655\n"
      "\n"
      "ms since the backward pass began, medians\n"
      "bucket  gradients       size   ready    sent    done   took\n"
      "0               2  1.000 MiB   0.310   0.325   1.310  0.985\n"
      "1               2  2.000 MiB  12.000  12.345  14.000  1.655\n");
}

TEST(StatisticsTable, NamesWhatWasNotUsed) {
  DataParallelStatistics of = example();
  of.ready_order = {3, 1, 0, 2};
  of.unused = {0, 2};
  of.unused_bytes = 1 << 19;
  EXPECT_THAT(of.table(), HasSubstr("\nready first: 2.bias, 0.bias\n"
                                    "unused, 0.500 MiB: 0.weight, 2.weight\n\n"));
}

TEST(StatisticsTable, SaysWhyThereAreNoTimes) {
  DataParallelStatistics of = example();
  of.last.reset();
  of.recent = {};
  of.passes = 0;
  of.has_rebuilt_buckets = false;
  of.ready_order.clear();
  of.comm_hook = "bf16_compress";
  of.parameters = {"weight"};
  of.buckets.pop_back();
  const std::string heading =
      "rank 1 of 4 on cpu, hook bf16_compress, pass 0\n"
      "1 parameter, 3.000 MiB of Float, BFloat16, in 1 bucket, not yet rearranged\n";
  of.statistics_every = 10;
  EXPECT_EQ(of.table(), heading + "no times yet: the option 'statistics_every' is 10\n");
  of.statistics_every = 0;
  EXPECT_EQ(of.table(), heading + "no times: the option 'statistics_every' is 0\n");
}

TEST(StatisticsTable, CutsLongLists) {
  DataParallelStatistics of = example();
  of.parameters.assign(1000, "transformer.layers.17.attention.weight");
  of.ready_order.assign(1000, 5);
  of.recent.buckets.assign(50, of.recent.buckets[0]);
  const std::string table = of.table();
  EXPECT_THAT(table,
              HasSubstr("\nready first: transformer.layers.17.attention.weight and 999 more\n"));
  EXPECT_THAT(table, HasSubstr("\n39              2"));
  EXPECT_THAT(table, Not(HasSubstr("\n40 ")));
  EXPECT_THAT(table, testing::EndsWith("\nand 10 more\n"));
}

}  // namespace
}  // namespace ddprun
