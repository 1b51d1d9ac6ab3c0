// How results reach the caller's memory.
//
// A store to a line that is not in the cache reads it first. Results that are larger than the caches need
// neither that nor the room: non-temporal stores write whole lines past them ("Intel 64 and IA-32
// Architectures Optimization Reference Manual", on streaming stores). Small results are better left in the
// cache, for who reads them next; CpuTuning::stream_bytes says from where on it pays.
//
// Any thread.
#pragma once

#include <cstddef>

#include "worker_lib/collective/core/scattered.h"

namespace ddprun {

// As copy_bytes(); the stores have ended when it returns. Where the processor has no such stores it is
// copy_bytes().
void stream_bytes(void* to, const void* from, std::size_t bytes);

}  // namespace ddprun
