// Tests CpuGroupOptions::deterministic_across_layouts: on every layout, reductions give the
// bits of one node.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/expect_dist_error.h"
#include "tests/worker_lib/cpu_group/reference.h"
#include "tests/worker_lib/cpu_group/world.h"
#include "worker_lib/collective/core/scattered.h"

namespace ddprun {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(60);

// Returns the layout that has all ranks on one node.
std::string on_one_node(const std::string& letters) { return std::string(letters.size(), 'a'); }

std::vector<Bytes> random_inputs(Rng& rng, int size, ElementType type, std::size_t count) {
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(random_elements(rng, type, count));
  return inputs;
}

class RankOrder : public testing::TestWithParam<const char*> {
 protected:
  EngineWorld world_{GetParam(), {.deterministic_across_layouts = true}};
  Rng rng_{7};
};

TEST_P(RankOrder, AllReduceAndReduceGiveTheBitsOfOneNode) {
  for (const ElementType type : kElementTypes) {
    for (const ReduceOp op : kReduceOps) {
      if (!is_defined(type, op)) continue;
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{5003}}) {
        const auto inputs = random_inputs(rng_, world_.size(), type, count);
        const Bytes expected = reference_reduction(on_one_node(world_.letters()), inputs, type, op);
        const Rank root(world_.size() - 1);
        world_.run([&](CpuGroup& group, int rank) {
          Bytes data = inputs[rank];
          ASSERT_TRUE(group.all_reduce(list_of(writable(data)), type, op, kTimeout));
          EXPECT_EQ(data, expected) << to_text(type) << " " << to_text(op) << " " << count;
          data = inputs[rank];
          ASSERT_TRUE(group.reduce(list_of(writable(data)), type, op, root, kTimeout));
          EXPECT_EQ(data, rank == root.value ? expected : inputs[rank]);
        });
      }
    }
  }
}

TEST_P(RankOrder, AListOfManyChunksGivesTheBitsOfOneNode) {
  constexpr std::size_t kCount = 700'000;
  const auto inputs = random_inputs(rng_, world_.size(), ElementType::kF32, kCount);
  const Bytes expected =
      reference_reduction(on_one_node(world_.letters()), inputs, ElementType::kF32, ReduceOp::kSum);
  world_.run([&](CpuGroup& group, int rank) {
    Bytes data = inputs[rank];
    // The list is cut at places where no share and no piece ends.
    const std::vector<WritableBytes> list{{data.data(), 400'004},
                                          {data.data() + 400'004, 12},
                                          {data.data() + 400'016, data.size() - 400'016}};
    ASSERT_TRUE(group.all_reduce(list, ElementType::kF32, ReduceOp::kSum, kTimeout));
    EXPECT_EQ(data, expected) << "rank " << rank;
  });
}

TEST_P(RankOrder, SharedTensorsGiveTheBitsOfOneNode) {
  constexpr std::size_t kCount = 300'000;
  const auto inputs = random_inputs(rng_, world_.size(), ElementType::kBF16, kCount);
  const Bytes expected = reference_reduction(on_one_node(world_.letters()), inputs,
                                             ElementType::kBF16, ReduceOp::kAvg);
  world_.run([&](CpuGroup& group, int rank) {
    const Bytes& input = inputs[rank];
    const std::shared_ptr<char> shared = group.shared_memory(input.size());
    ASSERT_TRUE(shared);
    std::memcpy(shared.get(), input.data(), input.size());
    ASSERT_TRUE(group.all_reduce(list_of(WritableBytes(shared.get(), input.size())),
                                 ElementType::kBF16, ReduceOp::kAvg, kTimeout));
    EXPECT_EQ(std::memcmp(shared.get(), expected.data(), expected.size()), 0) << "rank " << rank;
  });
}

TEST_P(RankOrder, ReduceScatterGivesTheBitsOfOneNode) {
  constexpr std::size_t kCount = 4001;
  std::vector<std::vector<Bytes>> inputs;  // by rank, then by block
  for (int rank = 0; rank < world_.size(); ++rank) {
    inputs.push_back(random_inputs(rng_, world_.size(), ElementType::kF16, kCount));
  }
  world_.run([&](CpuGroup& group, int rank) {
    Bytes output(inputs[rank][rank].size());
    ASSERT_TRUE(group.reduce_scatter(readable_each(inputs[rank]), list_of(writable(output)),
                                     ElementType::kF16, ReduceOp::kSum, kTimeout));
    std::vector<Bytes> of_block;
    for (const std::vector<Bytes>& one : inputs) of_block.push_back(one[rank]);
    EXPECT_EQ(output, reference_reduction(on_one_node(world_.letters()), of_block,
                                          ElementType::kF16, ReduceOp::kSum))
        << "rank " << rank;
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, RankOrder,
                         testing::Values("aaa", "ab", "aab", "abb", "abab", "aabc", "abcc", "abcd",
                                         "aaabbbcc", "abbbbccc", "baab"),
                         [](const auto& of_test) { return std::string(of_test.param); });

// Layouts differ without the option; otherwise the tests above would show nothing.
TEST(RankOrderOff, LayoutsGiveBitsOfTheirOwn) {
  Rng rng(7);
  const auto inputs = random_inputs(rng, 4, ElementType::kF32, 5003);
  EXPECT_NE(reference_reduction("aaaa", inputs, ElementType::kF32, ReduceOp::kSum),
            reference_reduction("aabb", inputs, ElementType::kF32, ReduceOp::kSum));
  EngineWorld world("aabb");
  world.run([&](CpuGroup& group, int rank) {
    Bytes data = inputs[rank];
    ASSERT_TRUE(
        group.all_reduce(list_of(writable(data)), ElementType::kF32, ReduceOp::kSum, kTimeout));
    EXPECT_EQ(data, reference_reduction("aabb", inputs, ElementType::kF32, ReduceOp::kSum));
  });
}

}  // namespace
}  // namespace ddprun
