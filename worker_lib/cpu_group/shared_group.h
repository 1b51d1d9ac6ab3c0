// make_shared_group(): a CpuGroup of two or more ranks. cpu_group.h has the promises.
#pragma once

#include <memory>

#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/cpu_group/group_core.h"
#include "worker_lib/cpu_shm/core/segment_layout.h"

namespace ddprun {

std::unique_ptr<CpuGroup> make_shared_group(std::unique_ptr<GroupCore> core);

// Returns the bytes that such a group needs in the segment.
SegmentNeeds shared_segment_needs(int local_count, int world_size);

}  // namespace ddprun
