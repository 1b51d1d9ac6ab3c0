// What of NcclDouble outlives it, or belongs to a thread.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace ddprun {

// Blocks of mem_alloc: tensors in them may outlive the double.
struct NcclDoubleMemory {
  std::mutex mutex;
  std::map<void*, std::size_t> blocks;
};

inline NcclDoubleMemory& double_memory() {
  static NcclDoubleMemory the_memory;
  return the_memory;
}

// The device that is the calling thread's current one.
inline int& double_device() {
  thread_local int the_device = 0;
  return the_device;
}

}  // namespace ddprun
