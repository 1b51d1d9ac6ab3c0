// Every collective on every layout, against the plain reference: ranks are threads, each with a
// group of its own; nodes are simulated. Sums are compared bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/worker_lib/cpu/reference.h"
#include "tests/worker_lib/cpu/world.h"

namespace ddprun {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(30);
// Nothing, one, odd ones, a few lines, more than one stage holds.
constexpr std::size_t kCounts[] = {0, 1, 7, 64, 1001, 70'001};

class CpuGroupConformance : public testing::TestWithParam<const char*> {
 protected:
  EngineWorld world_{GetParam()};
  Rng rng_{42};

  std::vector<Bytes> random_inputs(ElementType type, std::size_t count) {
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < world_.size(); ++rank)
      inputs.push_back(random_elements(rng_, type, count));
    return inputs;
  }
};

std::vector<void*> pointers(std::vector<Bytes>& buffers) {
  std::vector<void*> result;
  for (Bytes& buffer : buffers) result.push_back(buffer.data());
  return result;
}

std::vector<const void*> pointers(const std::vector<Bytes>& buffers) {
  std::vector<const void*> result;
  for (const Bytes& buffer : buffers) result.push_back(buffer.data());
  return result;
}

std::string name_of(ElementType type, ReduceOp op, std::size_t count) {
  return std::to_string(count) + " " + to_text(type) + " " + to_text(op);
}

#define EXPECT_WORKS(call)                           \
  do {                                               \
    const Result<void> result = (call);              \
    EXPECT_TRUE(result) << result.error().message(); \
  } while (false)

TEST_P(CpuGroupConformance, AllReduceGivesTheDocumentedBitsOnEveryRankForEveryTypeAndOperation) {
  for (const ElementType type : kElementTypes) {
    for (const ReduceOp op : kReduceOps) {
      if (!is_defined(type, op)) continue;
      for (const std::size_t count : kCounts) {
        const std::vector<Bytes> inputs = random_inputs(type, count);
        const Bytes expected = reference_reduction(world_.letters(), inputs, type, op);
        world_.run([&](CpuGroup& group, int rank) {
          Bytes data = inputs[rank];
          EXPECT_WORKS(group.all_reduce(data.data(), count, type, op, kTimeout));
          EXPECT_EQ(data, expected) << name_of(type, op, count) << " on rank " << rank;
        });
      }
    }
  }
}

TEST_P(CpuGroupConformance, AllReduceOfManyChunksRepeatsTheSameBits) {
  for (const auto& [type, count] :
       {std::pair<ElementType, std::size_t>{ElementType::kF32, 1'300'001},
        {ElementType::kBF16, 300'001}}) {
    const ElementType element = type;
    const std::vector<Bytes> inputs = random_inputs(type, count);
    const Bytes expected = reference_reduction(world_.letters(), inputs, type, ReduceOp::kSum);
    world_.run([&](CpuGroup& group, int rank) {
      for (int repeat = 0; repeat < 2; ++repeat) {
        Bytes data = inputs[rank];
        EXPECT_WORKS(group.all_reduce(data.data(), data.size() / size_of(element), element,
                                      ReduceOp::kSum, kTimeout));
        EXPECT_TRUE(data == expected) << to_text(element) << " on rank " << rank;
      }
    });
  }
}

TEST_P(CpuGroupConformance, ReduceGivesTheResultToTheRootAndLeavesTheOthersBuffersAlone) {
  for (const std::size_t count : kCounts) {
    for (int root = 0; root < world_.size(); ++root) {
      const ElementType type = root % 2 ? ElementType::kF16 : ElementType::kF32;
      const std::vector<Bytes> inputs = random_inputs(type, count);
      const Bytes expected = reference_reduction(world_.letters(), inputs, type, ReduceOp::kSum);
      world_.run([&](CpuGroup& group, int rank) {
        Bytes data = inputs[rank];
        EXPECT_WORKS(group.reduce(data.data(), count, type, ReduceOp::kSum, Rank(root), kTimeout));
        EXPECT_TRUE(data == (rank == root ? expected : inputs[rank]))
            << count << " to " << root << " on " << rank;
      });
    }
  }
}

TEST_P(CpuGroupConformance, BroadcastGivesEveryoneTheRootsBytes) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{1001}, std::size_t{3'000'003}}) {
    for (int root = 0; root < world_.size(); ++root) {
      const std::vector<Bytes> inputs = random_inputs(ElementType::kU8, bytes);
      world_.run([&](CpuGroup& group, int rank) {
        Bytes data = inputs[rank];
        EXPECT_WORKS(group.broadcast(data.data(), bytes, Rank(root), kTimeout));
        EXPECT_TRUE(data == inputs[root]) << bytes << " from " << root << " on " << rank;
      });
    }
  }
}

TEST_P(CpuGroupConformance, AllGatherGivesEveryoneEveryonesBytes) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{1001}, std::size_t{700'003}}) {
    const std::vector<Bytes> inputs = random_inputs(ElementType::kU8, bytes);
    world_.run([&](CpuGroup& group, int rank) {
      std::vector<Bytes> outputs(world_.size(), Bytes(bytes));
      EXPECT_WORKS(group.all_gather(inputs[rank].data(), pointers(outputs), bytes, kTimeout));
      EXPECT_TRUE(outputs == inputs) << bytes << " on " << rank;
    });
  }
}

TEST_P(CpuGroupConformance, AllGatherTakesItsInputFromItsOutput) {
  const std::size_t bytes = 300'007;
  const std::vector<Bytes> inputs = random_inputs(ElementType::kU8, bytes);
  world_.run([&](CpuGroup& group, int rank) {
    std::vector<Bytes> outputs(world_.size(), Bytes(bytes));
    outputs[rank] = inputs[rank];
    EXPECT_WORKS(group.all_gather(outputs[rank].data(), pointers(outputs), bytes, kTimeout));
    EXPECT_TRUE(outputs == inputs) << "on " << rank;
  });
}

TEST_P(CpuGroupConformance, ReduceScatterGivesEachRankTheReductionOfItsBlockAndOnlyReadsTheInputs) {
  for (const ElementType type : {ElementType::kF32, ElementType::kBF16, ElementType::kI16}) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{333}, std::size_t{50'003}}) {
      // inputs[rank][block]
      std::vector<std::vector<Bytes>> inputs;
      for (int rank = 0; rank < world_.size(); ++rank) inputs.push_back(random_inputs(type, count));
      std::vector<Bytes> expected;
      for (int block = 0; block < world_.size(); ++block) {
        std::vector<Bytes> of_block;
        for (const auto& of_rank : inputs) of_block.push_back(of_rank[block]);
        expected.push_back(reference_reduction(world_.letters(), of_block, type, ReduceOp::kSum));
      }
      world_.run([&](CpuGroup& group, int rank) {
        const std::vector<Bytes> mine = inputs[rank];
        Bytes output(count * size_of(type));
        EXPECT_WORKS(group.reduce_scatter(pointers(mine), output.data(), count, type,
                                          ReduceOp::kSum, kTimeout));
        EXPECT_TRUE(output == expected[rank])
            << name_of(type, ReduceOp::kSum, count) << " on " << rank;
        EXPECT_TRUE(mine == inputs[rank]);
      });
    }
  }
}

TEST_P(CpuGroupConformance, GatherGivesTheRootEveryonesBytes) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{1001}, std::size_t{300'003}}) {
    for (int root = 0; root < world_.size(); ++root) {
      const std::vector<Bytes> inputs = random_inputs(ElementType::kU8, bytes);
      world_.run([&](CpuGroup& group, int rank) {
        std::vector<Bytes> outputs(rank == root ? world_.size() : 0, Bytes(bytes));
        EXPECT_WORKS(
            group.gather(inputs[rank].data(), pointers(outputs), bytes, Rank(root), kTimeout));
        EXPECT_TRUE(rank != root || outputs == inputs) << bytes << " to " << root;
      });
    }
  }
}

TEST_P(CpuGroupConformance, ScatterGivesEachRankItsBlockOfTheRoots) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{1001}, std::size_t{300'003}}) {
    for (int root = 0; root < world_.size(); ++root) {
      const std::vector<Bytes> inputs = random_inputs(ElementType::kU8, bytes);
      world_.run([&](CpuGroup& group, int rank) {
        Bytes output(bytes);
        const std::vector<const void*> given =
            rank == root ? pointers(inputs) : std::vector<const void*>{};
        EXPECT_WORKS(group.scatter(given, output.data(), bytes, Rank(root), kTimeout));
        EXPECT_TRUE(output == inputs[rank]) << bytes << " from " << root << " on " << rank;
      });
    }
  }
}

// Nobody is let out of a barrier before everyone is in.
TEST_P(CpuGroupConformance, BarrierLetsNobodyPassBeforeAllHaveCome) {
  std::atomic<int> entered{0};
  world_.run([&](CpuGroup& group, int) {
    for (int round = 1; round <= 200; ++round) {
      ++entered;
      EXPECT_WORKS(group.barrier(kTimeout));
      EXPECT_GE(entered.load(), round * world_.size());
    }
  });
}

// Small and large ones of all kinds behind one another: stages are used again across collectives.
TEST_P(CpuGroupConformance, RandomSequencesOfCollectivesDoNotDisturbEachOther) {
  Rng script(7);
  std::vector<std::function<void(CpuGroup&, int)>> calls;
  for (int i = 0; i < 60; ++i) {
    const std::size_t count = script.below(script.chance(0.3) ? 400'000 : 3000);
    const int root = static_cast<int>(script.below(world_.size()));
    const auto inputs =
        std::make_shared<std::vector<Bytes>>(random_inputs(ElementType::kF32, count));
    const std::size_t bytes = count * 4;
    switch (script.below(4)) {
      case 0: {
        const Bytes sum =
            reference_reduction(world_.letters(), *inputs, ElementType::kF32, ReduceOp::kSum);
        calls.push_back([=](CpuGroup& group, int rank) {
          Bytes data = (*inputs)[rank];
          EXPECT_WORKS(
              group.all_reduce(data.data(), count, ElementType::kF32, ReduceOp::kSum, kTimeout));
          EXPECT_TRUE(data == sum) << "call " << i << ", " << count;
        });
        break;
      }
      case 1:
        calls.push_back([=](CpuGroup& group, int rank) {
          Bytes data = (*inputs)[rank];
          EXPECT_WORKS(group.broadcast(data.data(), bytes, Rank(root), kTimeout));
          EXPECT_TRUE(data == (*inputs)[root]) << "call " << i << ", " << count;
        });
        break;
      case 2:
        calls.push_back([=](CpuGroup& group, int rank) {
          std::vector<Bytes> outputs(inputs->size(), Bytes(bytes));
          EXPECT_WORKS(
              group.all_gather((*inputs)[rank].data(), pointers(outputs), bytes, kTimeout));
          EXPECT_TRUE(outputs == *inputs) << "call " << i << ", " << count;
        });
        break;
      case 3:
        calls.push_back([=](CpuGroup& group, int rank) {
          Bytes output(bytes);
          const auto given =
              rank == root ? pointers(std::as_const(*inputs)) : std::vector<const void*>{};
          EXPECT_WORKS(group.scatter(given, output.data(), bytes, Rank(root), kTimeout));
          EXPECT_TRUE(output == (*inputs)[rank]) << "call " << i << ", " << count;
        });
        break;
    }
  }
  world_.run([&](CpuGroup& group, int rank) {
    for (const auto& call : calls) call(group, rank);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, CpuGroupConformance, testing::ValuesIn(kLayouts),
                         [](const auto& layout) { return std::string(layout.param); });

}  // namespace
}  // namespace ddprun
