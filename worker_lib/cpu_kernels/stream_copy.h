// stream_bytes(): writes results into the caller's memory past the caches.
//
// A store to a line that is not in the cache reads the line first. Results larger than the
// caches need neither that read nor the space. Non-temporal stores write whole lines past the
// caches ("Intel 64 and IA-32 Architectures Optimization Reference Manual", on streaming
// stores). Small results should stay in the cache for their next reader. CpuTuning::stream_bytes
// is the size from which it pays.
//
// Thread-safe.
#pragma once

#include <cstddef>

#include "worker_lib/collective/core/scattered.h"

namespace ddprun {

// Copies like copy_bytes(). The stores have ended when it returns. If the processor has no such
// stores, it is copy_bytes().
void stream_bytes(void* to, const void* from, std::size_t bytes);

}  // namespace ddprun
