// Computes the exact bits that a reduction must give. It follows docs/concepts/determinism.md as
// plainly as possible, and shares no code with the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "ddprun/reduce_op.h"
#include "tests/worker_lib/support/reduce_ops.h"
#include "worker_lib/collective/element_type.h"

namespace ddprun {

using Bytes = std::vector<char>;

inline constexpr ElementType kElementTypes[] = {
    ElementType::kBool, ElementType::kU8,  ElementType::kI8,  ElementType::kI16,
    ElementType::kI32,  ElementType::kI64, ElementType::kF16, ElementType::kBF16,
    ElementType::kF32,  ElementType::kF64, ElementType::kC64, ElementType::kC128};

bool is_defined(ElementType type, ReduceOp op);

// Returns random elements. Floats have very different sizes, so that the order of a sum shows,
// and some are zero. Integers have any value. Long buffers repeat with a period. No cut of a
// buffer falls on a multiple of it, so one period is enough for the reference.
inline constexpr std::size_t kPeriod = 10'007;
Bytes random_elements(Rng& rng, ElementType type, std::size_t count);

// Returns the bits of the f16 or bf16 that is nearest to a value, ties to even.
std::uint16_t round_by_arithmetic(ElementType type, float value);

// letters: the layout of the world. by_rank: the input of each rank.
Bytes reference_reduction(const std::string& letters, const std::vector<Bytes>& by_rank,
                          ElementType type, ReduceOp op);

}  // namespace ddprun
