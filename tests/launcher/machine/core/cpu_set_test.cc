#include "launcher/machine/core/cpu_set.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(CpuSet, IsWrittenAsTheKernelDoes) {
  EXPECT_EQ(to_text(CpuSet{}), "none");
  EXPECT_EQ(to_text(CpuSet{5}), "5");
  EXPECT_EQ(to_text(CpuSet{0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(to_text(CpuSet{1, 3, 4}), "1,3-4");
}

TEST(CpuSet, IsReadAsItIsWritten) {
  for (const CpuSet& cpus : {CpuSet{0}, CpuSet{0, 1, 2, 3, 8}, CpuSet{7, 9, 200}}) {
    EXPECT_EQ(parse_cpu_list(to_text(cpus)), cpus);
    EXPECT_EQ(parse_cpu_list(to_text(cpus) + "\n"), cpus);
  }
  EXPECT_EQ(parse_cpu_list(""), CpuSet{});
}

TEST(CpuSet, WhatIsNoListIsNotRead) {
  for (const char* text : {"x", "3-1", "1-", "-1", "1,,2", "1 2", "99999999", "0-99999999"}) {
    EXPECT_FALSE(parse_cpu_list(text)) << text;
  }
}

TEST(CpuSet, CommonIsWhatIsInBoth) {
  EXPECT_EQ(common({0, 1, 2}, {1, 2, 3}), (CpuSet{1, 2}));
  EXPECT_EQ(common({0}, {1}), CpuSet{});
}

}  // namespace
}  // namespace ddprun
