// Assertions on the arguments of the engine's calls (cpu_group.h). The layer above the engine
// has already checked them, with errors for its users: worker_lib/group/argument_check.h.
#pragma once

#include <cstddef>

#include "base/ids.h"
#include "ddprun/reduce_op.h"
#include "worker_lib/collective/element_type.h"

namespace ddprun {

void require_operation(ElementType type, ReduceOp op);
void require_root(Rank root, int size);
void require_count(std::size_t given, std::size_t wanted);  // of tensors
void require_partner(Rank partner, int rank, int size);
[[noreturn]] void refuse_partner();  // in a world of one

}  // namespace ddprun
