// Reduction kernels: out[i] = sources[0][i] op sources[1][i] op ..., from left to right.
//
// The order of the sources is the order of the reduction. Kernels work element by element and
// never combine different elements. So the vector width of the machine does not change the
// result: every clone gives the same bits. f16 and bf16 are reduced in f32 and rounded once at
// the end, to nearest even. Subnormal numbers count, and rounding is to nearest even, whatever
// the mode of the calling thread. Integers wrap around. min and max pass NaN on, as torch's do.
//
// Units that are compiled for newer instruction sets than the rest include this header. So it
// uses no standard library: an inline function compiled there must not be linked into the whole
// program. Pure functions; thread-safe.
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
  void* const* copies = nullptr;  // get the same result as out
  int copy_count = 0;
  double divisor = 1;  // kAvg: the reduction is divided by it at the end
};

// The three forms differ for f16 and bf16, whose partial results are f32. For all other types
// they are the same.
enum class ReduceForm {
  kWhole,    // elements in, elements out
  kPartial,  // elements in, accumulators out
  kFinish,   // accumulators in, elements out
};

using ReduceKernel = void (*)(const ReduceArguments&);

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// Returns the best set that this processor has.
InstructionSet best_instruction_set();

// Returns the kernel. Returns null if the operation is not defined for the type, or if this
// build has no clone for the set. kAvg is for floating-point and complex numbers; complex
// numbers also have kSum but nothing else. The bitwise operations are for integers and bool.
// kAvg reduces as kSum does, and divides.
ReduceKernel reduce_kernel(ElementType type, ReduceOp op, ReduceForm form, InstructionSet set);

}  // namespace ddprun
