// Assertions on the arguments of the engine's calls (cpu_group.h). The layer above the engine
// has already checked them, with errors for its users: worker_lib/group/argument_check.h.
#pragma once

#include <cstddef>

#include "base/assert.h"
#include "base/ids.h"
#include "worker_lib/cpu_kernels/reduce_kernels.h"

namespace ddprun {

inline void require_operation(ElementType type, ReduceOp op) {
  DDPRUN_ASSERT(reduce_kernel(type, op, ReduceForm::kWhole, InstructionSet::kBaseline),
                "elements of this type can be reduced by this operation");
}

inline void require_root(Rank root, int size) {
  DDPRUN_ASSERT(root.value >= 0 && root.value < size, "the root is a rank of the group");
}

// Requires the number of tensors that the call takes.
inline void require_count(std::size_t given, std::size_t wanted) {
  DDPRUN_ASSERT(given == wanted,
                "there is as much for each rank where data goes in or out, and nothing elsewhere");
}

inline void require_partner(Rank partner, int rank, int size) {
  DDPRUN_ASSERT(partner.value >= 0 && partner.value < size && partner.value != rank,
                "the partner is another rank of the group");
}

// Refuses a message in a world of one.
[[noreturn]] inline void refuse_partner() {
  DDPRUN_ASSERT(false, "a world of one has no partners");
}

}  // namespace ddprun
