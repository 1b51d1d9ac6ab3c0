#include "worker_lib/ddp/core/pass_words.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace ddprun {
namespace {

// Returns the value as bfloat16 stores it: rounded to 8 significant bits.
double in_16_bits(double value) {
  const auto bits =
      (std::bit_cast<std::uint32_t>(static_cast<float>(value)) + 0x7fffu) & 0xffff0000u;
  return static_cast<double>(std::bit_cast<float>(bits));
}

ChosenEpochs chosen(std::int64_t epoch) { return {{.epoch = epoch, .sampler = "train"}}; }

PassWords sum_of(const std::vector<std::vector<double>>& ranks) {
  std::vector<double> sums(ranks[0].size());
  const auto size = static_cast<double>(ranks.size());
  for (const auto& words : ranks)
    for (std::size_t i = 0; i < words.size(); ++i)
      sums[i] += in_16_bits(words[i] * in_16_bits(1 / size));
  for (double& sum : sums) sum = in_16_bits(sum) * size;
  return {sums, static_cast<int>(ranks.size())};
}

TEST(PassWords, SayWhatEachRankHasWritten) {
  const std::vector<bool> first{true, false}, second{false, false};
  const PassWords words = sum_of({PassWords::of_rank(0, 3, PassCode::kComplete, chosen(4), first),
                                  PassWords::of_rank(1, 3, PassCode::kGivenUp, {}, second),
                                  PassWords::of_rank(2, 3, PassCode::kMissing, chosen(4), second)});
  EXPECT_FALSE(words.missing_rank());
  EXPECT_EQ(words.code(0), PassCode::kComplete);
  EXPECT_EQ(words.code(1), PassCode::kGivenUp);
  EXPECT_EQ(words.code(2), PassCode::kMissing);
  EXPECT_FALSE(words.do_epochs_differ());
  EXPECT_TRUE(words.is_used(0));
  EXPECT_FALSE(words.is_used(1));
}

TEST(PassWords, ThatWereNotReducedLackTheOtherRanks) {
  const std::vector<double> own = PassWords::of_rank(1, 3, PassCode::kComplete, chosen(4), {});
  EXPECT_EQ(PassWords(own, 3).missing_rank(), 0);
  std::vector<double> of_another = PassWords::of_rank(0, 3, PassCode::kComplete, chosen(4), {});
  EXPECT_EQ(PassWords(of_another, 3).missing_rank(), 1);
  of_another[1] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(PassWords(of_another, 3).missing_rank(), 1);
  of_another[1] = 1e30;
  EXPECT_EQ(PassWords(of_another, 3).missing_rank(), 1);
}

TEST(PassWords, TellApartTheRanksWhoseSamplersAreInSeveralEpochs) {
  using Ranks = PassWords::Ranks;
  const auto sum = [](ChosenEpochs of_rank_0, ChosenEpochs of_rank_1) {
    return sum_of({PassWords::of_rank(0, 2, PassCode::kComplete, of_rank_0, {}),
                   PassWords::of_rank(1, 2, PassCode::kComplete, of_rank_1, {})});
  };
  const ChosenEpochs two{{.epoch = 0, .sampler = "eval"}, {.epoch = 29, .sampler = "train"}};
  EXPECT_TRUE(sum(two, chosen(29)).do_epochs_differ());
  EXPECT_FALSE(sum(two, chosen(29)).do_epochs_differ(Ranks::kSure));
  EXPECT_FALSE(sum(two, two).do_epochs_differ());
  EXPECT_FALSE(sum(two, chosen(0)).do_epochs_differ()) << "only one of them is sure";
  EXPECT_TRUE(sum(chosen(3), chosen(4)).do_epochs_differ(Ranks::kSure));
  const ChosenEpochs same{{.epoch = 3, .sampler = "eval"}, {.epoch = 3, .sampler = "train"}};
  EXPECT_TRUE(sum(same, chosen(4)).do_epochs_differ(Ranks::kSure));
}

TEST(PassWords, SurviveAnAverageIn16BitsForAnyNumberOfRanks) {
  for (const int ranks : {2, 3, 7, 100, 1000}) {
    for (const std::int64_t epoch : {0, 1, 28, 29, 30, 31, 1'000'000}) {
      std::vector<std::vector<double>> same, other;
      for (int rank = 0; rank < ranks; ++rank) {
        same.push_back(PassWords::of_rank(rank, ranks, PassCode::kGivenUp, chosen(epoch), {}));
        other.push_back(PassWords::of_rank(rank, ranks, PassCode::kMissing,
                                           chosen(epoch + (rank == ranks / 2 ? 1 : 0)), {}));
      }
      const PassWords equal = sum_of(same), different = sum_of(other);
      EXPECT_FALSE(equal.missing_rank());
      EXPECT_EQ(equal.code(ranks - 1), PassCode::kGivenUp);
      EXPECT_FALSE(equal.do_epochs_differ()) << ranks << " ranks, epoch " << epoch;
      EXPECT_EQ(different.code(0), PassCode::kMissing);
      EXPECT_TRUE(different.do_epochs_differ()) << ranks << " ranks, epoch " << epoch;
    }
  }
}

}  // namespace
}  // namespace ddprun
