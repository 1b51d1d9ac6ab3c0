// Tests every collective on every layout against the plain reference. Ranks are threads, each
// with its own group; nodes are simulated. Sums are compared bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/support/eventually.h"
#include "tests/support/test_seed.h"
#include "tests/support/whole.h"
#include "tests/worker_lib/cpu_group/reference.h"
#include "tests/worker_lib/cpu_group/world.h"

namespace ddprun {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(30);
// No element, one, odd numbers, a few cache lines, more than a stage holds.
constexpr std::size_t kCounts[] = {0, 1, 7, 64, 1001, 70'001};

// The usual choices, and others that use the engine's rarer paths from the first byte on.
enum class Choices { kUsual, kPastCaches, kFewJourneys, kSmallStages };

TuningOverrides tuning_of(Choices choices) {
  constexpr std::size_t kAlways = std::size_t{1} << 40;
  switch (choices) {
    case Choices::kUsual: return {};
    case Choices::kPastCaches: return {.in_place_bytes = 0, .stream_bytes = 0};
    case Choices::kFewJourneys: return {.small_reduce_bytes = kAlways, .repeated_bytes = kAlways};
    case Choices::kSmallStages: return {.stage_bytes = 4096, .repeated_bytes = 0, .pull_bytes = 0};
  }
  return {};
}

class CpuGroupConformance : public testing::TestWithParam<std::tuple<const char*, Choices>> {
 protected:
  EngineWorld world_{std::get<0>(GetParam()), {.tuning = tuning_of(std::get<1>(GetParam()))}};
  Rng rng_{42};

  std::vector<Bytes> random_inputs(ElementType type, std::size_t count) {
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < world_.size(); ++rank)
      inputs.push_back(random_elements(rng_, type, count));
    return inputs;
  }
};

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
          EXPECT_WORKS(group.all_reduce(list_of(writable(data)), type, op, kTimeout));
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
        EXPECT_WORKS(group.all_reduce(list_of(writable(data)), element, ReduceOp::kSum, kTimeout));
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
        EXPECT_WORKS(
            group.reduce(list_of(writable(data)), type, ReduceOp::kSum, Rank(root), kTimeout));
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
        EXPECT_WORKS(group.broadcast(list_of(writable(data)), Rank(root), kTimeout));
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
      EXPECT_WORKS(
          group.all_gather(list_of(readable(inputs[rank])), writable_each(outputs), kTimeout));
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
    EXPECT_WORKS(
        group.all_gather(list_of(readable(outputs[rank])), writable_each(outputs), kTimeout));
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
        EXPECT_WORKS(group.reduce_scatter(readable_each(mine), list_of(writable(output)), type,
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
            group.gather(readable(inputs[rank]), writable_each(outputs), Rank(root), kTimeout));
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
        const std::vector<ReadableBytes> given =
            rank == root ? readable_each(inputs) : std::vector<ReadableBytes>{};
        EXPECT_WORKS(group.scatter(given, writable(output), Rank(root), kTimeout));
        EXPECT_TRUE(output == inputs[rank]) << bytes << " from " << root << " on " << rank;
      });
    }
  }
}

// Returns a copy of `data` in memory that the ranks of the node share. If there is no such
// memory (a world of one), the copy is in ordinary memory.
std::shared_ptr<char> in_shared_memory(CpuGroup& group, const Bytes& data) {
  std::shared_ptr<char> memory = group.shared_memory(data.size());
  if (!memory) memory.reset(new char[data.size()], std::default_delete<char[]>());
  copy_bytes(memory.get(), data.data(), data.size());
  return memory;
}

// The sizes are below and above the size from which on nothing is staged. Some exceed a stage.
TEST_P(CpuGroupConformance, SharedTensorsAreReducedToTheSameBits) {
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kI64}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{50'021}, std::size_t{500'009}}) {
        const std::vector<Bytes> inputs = random_inputs(type, count);
        const Bytes expected = reference_reduction(world_.letters(), inputs, type, op);
        world_.run([&](CpuGroup& group, int rank) {
          const auto unused = group.shared_memory(rank * 5000);  // so that places differ
          const auto memory = in_shared_memory(group, inputs[rank]);
          const WritableBytes data(memory.get(), inputs[rank].size());
          EXPECT_WORKS(group.all_reduce(list_of(data), type, op, kTimeout));
          EXPECT_TRUE(Bytes(data.begin(), data.end()) == expected)
              << name_of(type, op, count) << " on rank " << rank;
        });
      }
    }
  }
}

// The tensors of some ranks are shared and those of the others are not; the set changes each
// round.
TEST_P(CpuGroupConformance, SharedAndPrivateTensorsMayMeet) {
  const std::size_t count = 100'003;
  const std::vector<Bytes> inputs = random_inputs(ElementType::kF32, count);
  const Bytes expected =
      reference_reduction(world_.letters(), inputs, ElementType::kF32, ReduceOp::kSum);
  world_.run([&](CpuGroup& group, int rank) {
    for (int round = 0; round < 10; ++round) {
      const auto memory = in_shared_memory(group, inputs[rank]);
      Bytes own = inputs[rank];
      const bool is_shared = ((rank + 1) * (round + 1)) % 3 != 0;
      const WritableBytes data =
          is_shared ? WritableBytes(memory.get(), own.size()) : writable(own);
      EXPECT_WORKS(group.all_reduce(list_of(data), ElementType::kF32, ReduceOp::kSum, kTimeout));
      EXPECT_TRUE(Bytes(data.begin(), data.end()) == expected) << round << " on rank " << rank;
    }
  });
}

// The sizes of a list. Among them are none, one element, and more than a stage.
constexpr std::size_t kListSizes[] = {0, 1, 3, 70'001, 0, 17, 40'000, 2};

std::vector<Bytes> cut_into(const Bytes& all, std::size_t element_bytes) {
  std::vector<Bytes> list;
  std::size_t begin = 0;
  for (const std::size_t count : kListSizes) {
    const std::size_t bytes = count * element_bytes;
    list.emplace_back(all.begin() + begin, all.begin() + begin + bytes);
    begin += bytes;
  }
  return list;
}

Bytes joined(const std::vector<Bytes>& list) {
  Bytes all;
  for (const Bytes& one : list) all.insert(all.end(), one.begin(), one.end());
  return all;
}

constexpr std::size_t kListCount = 0 + 1 + 3 + 70'001 + 0 + 17 + 40'000 + 2;

TEST_P(CpuGroupConformance, ListsAreReducedAsIfTheyWereOneTensor) {
  for (const ElementType type : {ElementType::kF32, ElementType::kBF16, ElementType::kU8}) {
    const std::vector<Bytes> inputs = random_inputs(type, kListCount);
    const Bytes expected = reference_reduction(world_.letters(), inputs, type, ReduceOp::kSum);
    world_.run([&](CpuGroup& group, int rank) {
      std::vector<Bytes> list = cut_into(inputs[rank], size_of(type));
      EXPECT_WORKS(group.all_reduce(writable_each(list), type, ReduceOp::kSum, kTimeout));
      EXPECT_TRUE(joined(list) == expected) << to_text(type) << " on " << rank;

      list = cut_into(inputs[rank], size_of(type));
      const int root = world_.size() - 1;
      EXPECT_WORKS(group.reduce(writable_each(list), type, ReduceOp::kSum, Rank(root), kTimeout));
      EXPECT_TRUE(joined(list) == (rank == root ? expected : inputs[rank])) << "on " << rank;
    });
  }
}

TEST_P(CpuGroupConformance, ListsAreBroadcastAsIfTheyWereOneTensor) {
  const std::vector<Bytes> inputs = random_inputs(ElementType::kU8, kListCount);
  world_.run([&](CpuGroup& group, int rank) {
    const int root = world_.size() / 2;
    std::vector<Bytes> list = cut_into(inputs[rank], 1);
    EXPECT_WORKS(group.broadcast(writable_each(list), Rank(root), kTimeout));
    EXPECT_TRUE(joined(list) == inputs[root]) << "on " << rank;
  });
}

TEST_P(CpuGroupConformance, ListsAreGatheredAndScatteredAsIfTheyWereOneTensor) {
  const ElementType type = ElementType::kF32;
  std::vector<std::vector<Bytes>> inputs;  // by rank, then by block
  for (int rank = 0; rank < world_.size(); ++rank)
    inputs.push_back(random_inputs(type, kListCount));
  world_.run([&](CpuGroup& group, int rank) {
    std::vector<Bytes> outputs;
    for (int from = 0; from < world_.size(); ++from) {
      for (const std::size_t count : kListSizes) outputs.emplace_back(count * size_of(type));
    }
    const std::vector<Bytes> mine = cut_into(inputs[rank][0], size_of(type));
    EXPECT_WORKS(group.all_gather(readable_each(mine), writable_each(outputs), kTimeout));
    Bytes all;
    for (int from = 0; from < world_.size(); ++from) {
      all.insert(all.end(), inputs[from][0].begin(), inputs[from][0].end());
    }
    EXPECT_TRUE(joined(outputs) == all) << "on " << rank;

    std::vector<Bytes> blocks, of_block;
    for (int to = 0; to < world_.size(); ++to) {
      for (Bytes& one : cut_into(inputs[rank][to], size_of(type))) blocks.push_back(one);
      of_block.push_back(inputs[to][rank]);
    }
    std::vector<Bytes> reduced = cut_into(inputs[rank][0], size_of(type));
    EXPECT_WORKS(group.reduce_scatter(readable_each(blocks), writable_each(reduced), type,
                                      ReduceOp::kSum, kTimeout));
    EXPECT_TRUE(joined(reduced) ==
                reference_reduction(world_.letters(), of_block, type, ReduceOp::kSum))
        << "on " << rank;
  });
}

// Returns the cut points of a buffer. The pieces have any length, also zero.
std::vector<std::size_t> random_cuts(Rng& rng, std::size_t count) {
  std::vector<std::size_t> cuts{0, count};
  for (int i = 0; i < 4; ++i) cuts.push_back(rng.below(count + 1));
  std::ranges::sort(cuts);
  return cuts;
}

// A sum has the same bits however a buffer is cut into calls or into a list, wherever it lies
// in memory, and whichever rank is late.
TEST_P(CpuGroupConformance, NeitherCutsNorDelaysShowInTheBitsOfASum) {
  for (const ElementType type :
       {ElementType::kF16, ElementType::kBF16, ElementType::kF32, ElementType::kF64}) {
    for (const std::size_t count : {std::size_t{501}, std::size_t{130'007}}) {
      const std::vector<Bytes> inputs = random_inputs(type, count);
      const Bytes expected = reference_reduction(world_.letters(), inputs, type, ReduceOp::kSum);
      Rng script(count);
      const std::vector<std::size_t> cuts = random_cuts(script, count);
      world_.run([&](CpuGroup& group, int rank) {
        Rng delays(static_cast<std::uint64_t>(rank) + count);
        const auto sum_up = [&](std::span<const WritableBytes> tensors) {
          if (delays.chance(0.3)) {
            testing_support::let_pass(testing_support::up_to(std::chrono::milliseconds(1), delays));
          }
          EXPECT_WORKS(group.all_reduce(tensors, type, ReduceOp::kSum, kTimeout));
        };
        const auto pieces_of = [&](WritableBytes data) {
          std::vector<WritableBytes> pieces;
          for (std::size_t i = 1; i < cuts.size(); ++i) {
            pieces.push_back(
                data.subspan(cuts[i - 1] * size_of(type), (cuts[i] - cuts[i - 1]) * size_of(type)));
          }
          return pieces;
        };
        for (int round = 0; round < 2; ++round) {
          Bytes whole = inputs[rank], list = whole, calls = whole;
          sum_up(list_of(writable(whole)));
          sum_up(pieces_of(writable(list)));
          for (const WritableBytes& piece : pieces_of(writable(calls))) sum_up(list_of(piece));
          const auto memory = in_shared_memory(group, inputs[rank]);
          const WritableBytes shared(memory.get(), expected.size());
          sum_up(list_of(shared));
          const std::string what = name_of(type, ReduceOp::kSum, count);
          EXPECT_TRUE(whole == expected) << what << ", whole, on rank " << rank;
          EXPECT_TRUE(list == expected) << what << ", as a list, on rank " << rank;
          EXPECT_TRUE(calls == expected) << what << ", in several calls, on rank " << rank;
          EXPECT_TRUE(std::ranges::equal(shared, expected)) << what << ", shared, on " << rank;
        }
      });
    }
  }
}

// Returns the data that rank `from` sends to rank `to`: each pair has a different number of
// bytes.
Bytes between(int from, int to, std::size_t step) {
  const std::size_t bytes = static_cast<std::size_t>((3 * from + to) % 5) * step;
  return Bytes(bytes, static_cast<char>(17 * from + to));
}

TEST_P(CpuGroupConformance, AllToAllGivesEveryPairItsOwnBytes) {
  for (const std::size_t step :
       {std::size_t{0}, std::size_t{1}, std::size_t{999}, std::size_t{100'003}}) {
    world_.run([&](CpuGroup& group, int rank) {
      std::vector<Bytes> inputs, outputs, expected;
      for (int other = 0; other < world_.size(); ++other) {
        inputs.push_back(between(rank, other, step));
        expected.push_back(between(other, rank, step));
        outputs.emplace_back(expected.back().size());
      }
      EXPECT_WORKS(group.all_to_all(readable_each(inputs), writable_each(outputs), kTimeout));
      EXPECT_TRUE(outputs == expected) << step << " on " << rank;
    });
  }
}

TEST_P(CpuGroupConformance, AllToAllOfEvenShares) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{1001}, std::size_t{300'003}}) {
    world_.run([&](CpuGroup& group, int rank) {
      std::vector<Bytes> inputs, outputs, expected;
      for (int other = 0; other < world_.size(); ++other) {
        inputs.emplace_back(bytes, static_cast<char>(rank * 16 + other));
        expected.emplace_back(bytes, static_cast<char>(other * 16 + rank));
        outputs.emplace_back(bytes);
      }
      EXPECT_WORKS(group.all_to_all(readable_each(inputs), writable_each(outputs), kTimeout));
      EXPECT_TRUE(outputs == expected) << bytes << " on " << rank;
    });
  }
}

// No rank leaves a barrier before every rank has entered it.
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

// Small and large collectives of all kinds follow each other, so stages are reused across
// collectives.
TEST_P(CpuGroupConformance, RandomSequencesOfCollectivesDoNotDisturbEachOther) {
  Rng script(7);
  std::vector<std::function<void(CpuGroup&, int)>> calls;
  for (int i = 0; i < 60; ++i) {
    const std::size_t count = script.below(script.chance(0.3) ? 400'000 : 3000);
    const int root = static_cast<int>(script.below(world_.size()));
    const auto inputs =
        std::make_shared<std::vector<Bytes>>(random_inputs(ElementType::kF32, count));
    const std::size_t bytes = count * 4;
    switch (script.below(5)) {
      case 0: {
        const Bytes sum =
            reference_reduction(world_.letters(), *inputs, ElementType::kF32, ReduceOp::kSum);
        calls.push_back([=](CpuGroup& group, int rank) {
          Bytes data = (*inputs)[rank];
          EXPECT_WORKS(group.all_reduce(list_of(writable(data)), ElementType::kF32, ReduceOp::kSum,
                                        kTimeout));
          EXPECT_TRUE(data == sum) << "call " << i << ", " << count;
        });
        break;
      }
      case 1:
        calls.push_back([=](CpuGroup& group, int rank) {
          Bytes data = (*inputs)[rank];
          EXPECT_WORKS(group.broadcast(list_of(writable(data)), Rank(root), kTimeout));
          EXPECT_TRUE(data == (*inputs)[root]) << "call " << i << ", " << count;
        });
        break;
      case 2:
        calls.push_back([=](CpuGroup& group, int rank) {
          std::vector<Bytes> outputs(inputs->size(), Bytes(bytes));
          EXPECT_WORKS(group.all_gather(list_of(readable((*inputs)[rank])), writable_each(outputs),
                                        kTimeout));
          EXPECT_TRUE(outputs == *inputs) << "call " << i << ", " << count;
        });
        break;
      case 4:
        calls.push_back([=, ranks = world_.size()](CpuGroup& group, int rank) {
          std::vector<Bytes> sent, got, expected;
          for (int other = 0; other < ranks; ++other) {
            sent.push_back(between(rank, other, count));
            expected.push_back(between(other, rank, count));
            got.emplace_back(expected.back().size());
          }
          EXPECT_WORKS(group.all_to_all(readable_each(sent), writable_each(got), kTimeout));
          EXPECT_TRUE(got == expected) << "call " << i << ", " << count;
        });
        break;
      case 3:
        calls.push_back([=](CpuGroup& group, int rank) {
          Bytes output(bytes);
          const auto given = rank == root ? readable_each(*inputs) : std::vector<ReadableBytes>{};
          EXPECT_WORKS(group.scatter(given, writable(output), Rank(root), kTimeout));
          EXPECT_TRUE(output == (*inputs)[rank]) << "call " << i << ", " << count;
        });
        break;
    }
  }
  world_.run([&](CpuGroup& group, int rank) {
    for (const auto& call : calls) call(group, rank);
  });
}

std::string name_of(Choices choices) {
  switch (choices) {
    case Choices::kUsual: return "";
    case Choices::kPastCaches: return "_past_caches";
    case Choices::kFewJourneys: return "_few_journeys";
    case Choices::kSmallStages: return "_small_stages";
  }
  return "";
}

std::string name_of_world(const testing::TestParamInfo<std::tuple<const char*, Choices>>& world) {
  return std::get<0>(world.param) + name_of(std::get<1>(world.param));
}

// The sample: one rank, one node, nodes of the same size whose ranks take turns, nodes that differ.
std::vector<const char*> layouts() {
  if (!testing_support::is_whole()) return {"a", "aaa", "abab", "abbc"};
  return {std::begin(kLayouts), std::end(kLayouts)};
}
std::vector<const char*> layouts_of_choices() {
  if (!testing_support::is_whole()) return {"abbc"};
  return {"aaa", "ab", "aabb", "abbc"};
}

INSTANTIATE_TEST_SUITE_P(Layouts, CpuGroupConformance,
                         testing::Combine(testing::ValuesIn(layouts()),
                                          testing::Values(Choices::kUsual)),
                         name_of_world);
INSTANTIATE_TEST_SUITE_P(Choices, CpuGroupConformance,
                         testing::Combine(testing::ValuesIn(layouts_of_choices()),
                                          testing::Values(Choices::kPastCaches,
                                                          Choices::kFewJourneys,
                                                          Choices::kSmallStages)),
                         name_of_world);

}  // namespace
}  // namespace ddprun
