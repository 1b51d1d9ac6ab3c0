#include "worker_lib/cpu_kernels/reduce_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tests/worker_lib/cpu_group/reference.h"

namespace ddprun {
namespace {

constexpr InstructionSet kSets[] = {InstructionSet::kBaseline, InstructionSet::kAvx2,
                                    InstructionSet::kAvx512};

std::vector<InstructionSet> sets_of_this_machine() {
  std::vector<InstructionSet> sets;
  for (const InstructionSet set : kSets) {
    if (set <= best_instruction_set()) sets.push_back(set);
  }
  return sets;
}

Bytes reduced(const std::vector<Bytes>& sources, ElementType type, ReduceOp op, ReduceForm form,
              InstructionSet set, std::size_t count, std::size_t out_size) {
  std::vector<const void*> pointers;
  for (const Bytes& source : sources) pointers.push_back(source.data());
  Bytes out(count * out_size);
  Bytes copy(count * out_size), another = copy;
  void* const copies[] = {copy.data(), another.data()};
  reduce_kernel(type, op, form,
                set)({.sources = pointers.data(),
                      .source_count = static_cast<int>(pointers.size()),
                      .count = count,
                      .out = out.data(),
                      .copies = copies,
                      .copy_count = 2,
                      .divisor = op == ReduceOp::kAvg ? static_cast<double>(sources.size()) : 1});
  EXPECT_EQ(out, copy);
  EXPECT_EQ(out, another);
  return out;
}

TEST(ReduceKernels, EveryCloneGivesTheReferencesBitsForEveryTypeAndOperation) {
  Rng rng(1);
  for (const ElementType type : kElementTypes) {
    for (const ReduceOp op : kReduceOps) {
      if (!is_defined(type, op)) continue;
      for (const std::size_t sources : {1, 2, 3, 7}) {
        for (const std::size_t count : {1, 5, 16, 1024, 2500}) {
          std::vector<Bytes> inputs;
          for (std::size_t i = 0; i < sources; ++i)
            inputs.push_back(random_elements(rng, type, count));
          const Bytes expected = reference_reduction(std::string(sources, 'a'), inputs, type, op);
          for (const InstructionSet set : sets_of_this_machine()) {
            ASSERT_EQ(reduced(inputs, type, op, ReduceForm::kWhole, set, count, size_of(type)),
                      expected)
                << to_text(type) << " " << to_text(op) << " of " << sources << " x " << count
                << ", set " << static_cast<int>(set);
          }
        }
      }
    }
  }
}

TEST(ReduceKernels, AFoldInTwoFormsIsTheFoldOfANodeAndThenOfNodes) {
  Rng rng(2);
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16, ElementType::kF64}) {
    const std::size_t count = 1500;
    const std::size_t wide = size_of(accumulator_of(type));
    std::vector<Bytes> inputs;
    for (int i = 0; i < 5; ++i) inputs.push_back(random_elements(rng, type, count));
    for (const InstructionSet set : sets_of_this_machine()) {
      const Bytes first = reduced({inputs[0], inputs[1], inputs[2]}, type, ReduceOp::kSum,
                                  ReduceForm::kPartial, set, count, wide);
      const Bytes second = reduced({inputs[3], inputs[4]}, type, ReduceOp::kSum,
                                   ReduceForm::kPartial, set, count, wide);
      EXPECT_EQ(reduced({first, second}, type, ReduceOp::kSum, ReduceForm::kFinish, set, count,
                        size_of(type)),
                reference_reduction("aaabb", inputs, type, ReduceOp::kSum));
    }
  }
}

TEST(ReduceKernels, TheOutputMayBeOneOfTheSources) {
  Rng rng(3);
  const std::size_t count = 3001;
  for (const ElementType type : {ElementType::kF32, ElementType::kF16}) {
    const std::vector<Bytes> inputs{random_elements(rng, type, count),
                                    random_elements(rng, type, count),
                                    random_elements(rng, type, count)};
    for (int target = 0; target < 3; ++target) {
      std::vector<Bytes> buffers = inputs;
      const void* sources[] = {buffers[0].data(), buffers[1].data(), buffers[2].data()};
      reduce_kernel(type, ReduceOp::kSum, ReduceForm::kWhole, best_instruction_set())(
          {.sources = sources, .source_count = 3, .count = count, .out = buffers[target].data()});
      EXPECT_EQ(buffers[target], reference_reduction("aaa", inputs, type, ReduceOp::kSum));
    }
  }
}

// Every f16 and bf16 value goes through a reduction of one source, and comes out unchanged (a
// NaN becomes quiet).
TEST(ReduceKernels, AllSixteenBitValuesSurviveTheWayThroughF32) {
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    for (const InstructionSet set : sets_of_this_machine()) {
      std::vector<std::uint16_t> out(all.size());
      const void* source = all.data();
      reduce_kernel(type, ReduceOp::kSum, ReduceForm::kWhole, set)(
          {.sources = &source, .source_count = 1, .count = all.size(), .out = out.data()});
      const int exponent = type == ElementType::kF16 ? 0x7c00 : 0x7f80;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const bool is_nan = (i & 0x7fff) > static_cast<std::size_t>(exponent);
        if (is_nan) {
          EXPECT_GT(out[i] & 0x7fff, exponent);
        } else {
          EXPECT_EQ(out[i], i);
        }
      }
    }
  }
}

// Every clone rounds f32 values around each boundary between two f16 (bf16) values alike.
TEST(ReduceKernels, RoundingToSixteenBitsIsToNearestEvenAndEqualInEveryClone) {
  for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
    std::vector<float> values;
    for (std::uint32_t high = 0; high < 65536; high += 3) {
      for (const std::uint32_t low :
           {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        const float value = std::bit_cast<float>((high << 16) | low);
        if (!std::isnan(value)) values.push_back(value);
      }
    }
    Bytes input(values.size() * 4);
    std::memcpy(input.data(), values.data(), input.size());
    const Bytes baseline = reduced({input}, type, ReduceOp::kSum, ReduceForm::kFinish,
                                   InstructionSet::kBaseline, values.size(), 2);
    for (const InstructionSet set : sets_of_this_machine()) {
      EXPECT_TRUE(reduced({input}, type, ReduceOp::kSum, ReduceForm::kFinish, set, values.size(),
                          2) == baseline);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint16_t rounded = 0;
      std::memcpy(&rounded, baseline.data() + 2 * i, 2);
      ASSERT_EQ(rounded, round_by_arithmetic(type, values[i])) << values[i];
    }
  }
}

TEST(ReduceKernels, MinAndMaxHandNanOnFromAnyPlace) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float rows[3][3] = {{nan, 1, 2}, {3, nan, 4}, {5, 6, nan}};
  const void* sources[] = {rows[0], rows[1], rows[2]};
  for (const InstructionSet set : sets_of_this_machine()) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      float out[3] = {};
      reduce_kernel(ElementType::kF32, op, ReduceForm::kWhole,
                    set)({.sources = sources, .source_count = 3, .count = 3, .out = out});
      for (const float value : out) EXPECT_TRUE(std::isnan(value));
    }
  }
}

// The kAvg of two ranks promises the bits of the sum of halves, except for overflow and
// subnormal numbers.
TEST(ReduceKernels, TheAverageOfTwoIsTheSumOfTheirHalves) {
  Rng rng(4);
  const std::size_t count = 5000;
  const std::vector<Bytes> inputs{random_elements(rng, ElementType::kF32, count),
                                  random_elements(rng, ElementType::kF32, count)};
  const Bytes average = reduced(inputs, ElementType::kF32, ReduceOp::kAvg, ReduceForm::kWhole,
                                best_instruction_set(), count, 4);
  for (std::size_t i = 0; i < count; ++i) {
    float a, b, got;
    std::memcpy(&a, inputs[0].data() + 4 * i, 4);
    std::memcpy(&b, inputs[1].data() + 4 * i, 4);
    std::memcpy(&got, average.data() + 4 * i, 4);
    ASSERT_EQ(got, a / 2 + b / 2);
  }
}

// Changes the arithmetic of the calling thread until this object is destroyed. It rounds
// upwards. If the processor allows it, there are no subnormal numbers.
class OddArithmetic {
 public:
  OddArithmetic() {
    std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
  }
  ~OddArithmetic() { std::fesetenv(&before_); }

 private:
  const std::fenv_t before_ = [] {
    std::fenv_t now;
    std::fegetenv(&now);
    return now;
  }();
};

TEST(ReduceKernels, TheThreadsOwnArithmeticShowsInNoBit) {
  Rng rng(8);
  for (const ElementType type : kElementTypes) {
    for (const ReduceOp op : kReduceOps) {
      if (!is_defined(type, op)) continue;
      std::vector<Bytes> inputs;
      for (int i = 0; i < 3; ++i) {
        inputs.push_back(random_elements(rng, type, 1100));
        // Every third number is one of the smallest.
        for (std::size_t at = 0; at < inputs.back().size(); ++at) {
          if (at / size_of(type) % 3 == 0 && at % size_of(type) != 0) inputs.back()[at] = {};
        }
      }
      for (const InstructionSet set : sets_of_this_machine()) {
        const auto result = [&] {
          return reduced(inputs, type, op, ReduceForm::kWhole, set, 1100, size_of(type));
        };
        const Bytes expected = result();
        const OddArithmetic odd;
        ASSERT_EQ(result(), expected) << to_text(type) << " " << to_text(op);
        EXPECT_EQ(std::fegetround(), FE_UPWARD) << "it is the thread's own affair";
      }
    }
  }
}

TEST(ReduceKernels, UndefinedOperationsHaveNoKernel) {
  for (const ElementType type : kElementTypes) {
    for (const ReduceOp op : kReduceOps) {
      const bool exists =
          reduce_kernel(type, op, ReduceForm::kWhole, InstructionSet::kBaseline) != nullptr;
      EXPECT_EQ(exists, is_defined(type, op)) << to_text(type) << " " << to_text(op);
    }
  }
}

}  // namespace
}  // namespace ddprun
