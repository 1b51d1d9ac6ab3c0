#include "worker_lib/serialization/core/written_file.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

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

TEST(WrittenFile, AChainIsThinnedOutSeveralTimesUntilItIsShortEnough) {
  WrittenFile file{.bytes = 1100, .chain_bytes = 100};
  for (char digit = 'a'; digit <= 'j'; ++digit) file.chain += std::string(kChainDigits, digit);
  thin_out_chain(file, 3);
  EXPECT_EQ(file.chain_bytes, 400u);
  EXPECT_EQ(file.chain, std::string(kChainDigits, 'd') + std::string(kChainDigits, 'h'));
}

TEST(WrittenFile, WithoutAChainNothingIsThinnedOut) {
  WrittenFile file{.name = "step-1.pt", .bytes = 700};
  const WrittenFile before = file;
  thin_out_chain(file, 0);
  EXPECT_EQ(file, before);
}

}  // namespace
}  // namespace ddprun
