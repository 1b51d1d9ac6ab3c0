// Fold kernels: out[i] = sources[0][i] op sources[1][i] op ..., from left to right.
//
// The order of the sources is the order of the reduction. Sums are made element by element, never
// across elements, so how wide the machine's vectors are does not show in the result: every clone
// gives the same bits. f16 and bf16 are reduced in f32 and rounded once, to nearest even, at the
// end. Subnormal numbers count, and rounding is to nearest even, whatever the calling thread wants
// of its own. Integers wrap around. min and max hand NaN on, as torch's do.
//
// This header is included by units that are compiled for newer instruction sets than the rest,
// hence no standard library in it: an inline function compiled there must not end up in the whole
// program. Pure functions; any thread.
#pragma once

#include <stddef.h>

#include "ddprun/reduce_op.h"
#include "worker_lib/collective/element_type.h"

namespace ddprun {

struct ReduceArguments {
  const void* const* sources = nullptr;
  int source_count = 0;           // at least 1
  size_t count = 0;               // elements
  void* out = nullptr;            // may be one of the sources
  void* const* copies = nullptr;  // get the same as out
  int copy_count = 0;
  double divisor = 1;  // kAvg: the fold is divided by it at the end
};

// For f16 and bf16 the three differ, as partial folds are f32; for all other types they are one.
enum class ReduceForm {
  kWhole,    // elements in, elements out
  kPartial,  // elements in, accumulators out
  kFinish,   // accumulators in, elements out
};

using ReduceKernel = void (*)(const ReduceArguments&);

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// The best set that this processor has.
InstructionSet best_instruction_set();

// Null if the operation is not defined for the type (kAvg is for floating-point and complex numbers,
// which know only kSum besides; the bitwise ones are for integers and bool), or if this build has no clone for the set. kAvg folds as
// kSum does, and divides.
ReduceKernel reduce_kernel(ElementType type, ReduceOp op, ReduceForm form, InstructionSet set);

}  // namespace ddprun
