#include "rendezvous/persistence/core/fenced_writes.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

constexpr EtcdRevision kTerm = 40;

TEST(FencedWrites, ComparesTheTermAndTheLastWrite) {
  FencedWrites writes(kTerm, 12);
  ASSERT_TRUE(writes.keep(1, {"job/a", "1"}));
  const auto first = writes.next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->term, kTerm);
  EXPECT_EQ(first->last, 12);
  ASSERT_EQ(first->entries.size(), 1u);
  writes.written(50);
  EXPECT_EQ(writes.durable(), 1u);
  EXPECT_FALSE(writes.next());
  ASSERT_TRUE(writes.keep(2, {"job/a", "2"}));
  const auto second = writes.next();
  EXPECT_EQ(second->last, 50);
  EXPECT_NE(second->chain_value, first->chain_value);
}

TEST(FencedWrites, OneIsUnderWayAndTheRestSharesTheNext) {
  FencedWrites writes(kTerm, 0);
  ASSERT_TRUE(writes.keep(1, {"job/a", "1"}));
  ASSERT_TRUE(writes.next());
  ASSERT_TRUE(writes.keep(2, {"job/b", "1"}));
  ASSERT_TRUE(writes.keep(3, {"job/a", "2"}));
  ASSERT_TRUE(writes.keep(4, {"job/a", ""}));
  EXPECT_FALSE(writes.next());
  writes.written(50);
  EXPECT_EQ(writes.durable(), 1u);
  const auto next = writes.next();
  ASSERT_EQ(next->entries.size(), 2u);
  JournalImage image;
  for (const JournalEntry& entry : next->entries) image[entry.key] = entry.value;
  EXPECT_EQ(image, (JournalImage{{"job/a", ""}, {"job/b", "1"}}));
  writes.written(51);
  EXPECT_EQ(writes.durable(), 4u);
}

TEST(FencedWrites, RepeatsTheSameWriteUntilItsOutcomeIsKnown) {
  FencedWrites writes(kTerm, 12);
  ASSERT_TRUE(writes.keep(1, {"job/a", "1"}));
  const auto first = writes.next();
  ASSERT_TRUE(writes.keep(2, {"job/a", "2"}));
  writes.unknown();
  EXPECT_EQ(writes.durable(), 0u);
  const auto again = writes.next();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->chain_value, first->chain_value);
  EXPECT_EQ(again->entries[0].value, "1");
  // The first try was performed after all.
  writes.refused({kTerm, 50, first->chain_value});
  EXPECT_FALSE(writes.is_lost());
  EXPECT_EQ(writes.durable(), 1u);
  EXPECT_EQ(writes.next()->last, 50);
}

TEST(FencedWrites, IsLostWhenAnotherServiceLeads) {
  for (const FenceState& found : {FenceState{41, 60, "41 1"}, FenceState{0, 12, "3 9"}}) {
    FencedWrites writes(kTerm, 12);
    ASSERT_TRUE(writes.keep(1, {"job/a", "1"}));
    ASSERT_TRUE(writes.next());
    writes.refused(found);
    EXPECT_TRUE(writes.is_lost());
    EXPECT_FALSE(writes.next());
    EXPECT_EQ(writes.durable(), 0u);
  }
}

TEST(FencedWrites, IsLostWhenTheChainKeyWasChangedByHand) {
  FencedWrites writes(kTerm, 12);
  ASSERT_TRUE(writes.keep(1, {"job/a", "1"}));
  ASSERT_TRUE(writes.next());
  writes.refused({kTerm, 13, "x"});
  EXPECT_TRUE(writes.is_lost());
}

TEST(FencedWrites, StaysWithinTheLimitsOfEtcdAndWritesTheOldestFirst) {
  FencedWrites writes(kTerm, 0);
  const std::size_t count = FencedWrites::kMostEntries + 5;
  for (std::size_t i = 1; i <= count; ++i) {
    ASSERT_TRUE(writes.keep(i, {"job/" + std::to_string(count - i), "1"}));
  }
  EXPECT_EQ(writes.next()->entries.size(), FencedWrites::kMostEntries);
  writes.written(50);
  EXPECT_EQ(writes.durable(), FencedWrites::kMostEntries);
  EXPECT_EQ(writes.next()->entries.size(), 5u);
  writes.written(51);
  EXPECT_EQ(writes.durable(), count);

  const std::string large(FencedWrites::kMostBytes / 2, 'x');
  for (std::size_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(writes.keep(count + i, {"job/" + std::to_string(i), large}));
  }
  EXPECT_EQ(writes.next()->entries.size(), 1u);
  writes.written(52);
  EXPECT_EQ(writes.durable(), count + 1);
}

TEST(FencedWrites, RefusesAValueThatEtcdDoesNotTake) {
  FencedWrites writes(kTerm, 0);
  const auto kept = writes.keep(1, {"job/a", std::string(FencedWrites::kMostBytes, 'x')});
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_FALSE(writes.next());
}

TEST(FencedWrites, NothingIsDurablePastAChangeThatIsTooLarge) {
  FencedWrites writes(kTerm, 0);
  ASSERT_TRUE(writes.keep(1, {"job/a", "1"}));
  EXPECT_FALSE(writes.keep(2, {"job/a", std::string(FencedWrites::kMostBytes, 'x')}));
  EXPECT_TRUE(writes.has_too_large());
  ASSERT_TRUE(writes.keep(3, {"job/b", "1"}));
  ASSERT_TRUE(writes.next());
  writes.written(50);
  EXPECT_EQ(writes.durable(), 1u);
  ASSERT_TRUE(writes.keep(4, {"job/a", "2"}));
  EXPECT_FALSE(writes.has_too_large());
  ASSERT_TRUE(writes.next());
  EXPECT_EQ(writes.durable(), 1u);
  writes.written(51);
  EXPECT_EQ(writes.durable(), 4u);
}

}  // namespace
}  // namespace ddprun
