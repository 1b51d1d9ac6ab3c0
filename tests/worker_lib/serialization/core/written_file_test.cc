#include "worker_lib/serialization/core/written_file.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(WrittenFile, TemporaryNamesEndInTmpAndDifferByWriter) {
  const std::string one = temporary_name("/checkpoints/step-1.pt", "5f00");
  EXPECT_TRUE(one.starts_with("/checkpoints/step-1.pt")) << one;
  EXPECT_TRUE(one.ends_with(kTemporarySuffix)) << one;
  EXPECT_NE(one, temporary_name("/checkpoints/step-1.pt", "5f01"));
}

TEST(WrittenFile, EqualOnlyIfNameSizeAndDigestAre) {
  const WrittenFile file{.name = "step-1.pt", .bytes = 3, .sha256 = "aa"};
  EXPECT_EQ(file, (WrittenFile{"step-1.pt", 3, "aa"}));
  EXPECT_NE(file, (WrittenFile{"step-1.pt", 4, "aa"}));
  EXPECT_NE(file, (WrittenFile{"step-1.pt", 3, "ab"}));
}

TEST(WrittenFile, AChainIsThinnedOutToEverySecondState) {
  const auto state = [](char digit) { return std::string(kChainDigits, digit); };
  WrittenFile file{.bytes = 700,
                   .chain_bytes = 128,
                   .chain = state('1') + state('2') + state('3') + state('4') + state('5')};
  EXPECT_EQ(chain_states(file.bytes, file.chain_bytes), 5u);
  EXPECT_EQ(state_after(file, 384), state('3'));
  thin_out_chain(file, 5);
  EXPECT_EQ(file.chain_bytes, 128u);
  thin_out_chain(file, 4);
  EXPECT_EQ(file.chain_bytes, 256u);
  EXPECT_EQ(file.chain, state('2') + state('4'));
  thin_out_chain(file, 0);
  EXPECT_EQ(file.chain_bytes, 0u);
  EXPECT_EQ(file.chain, "");
}

}  // namespace
}  // namespace ddprun
