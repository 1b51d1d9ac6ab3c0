// The state of NcclDouble that outlives it, or that belongs to a thread.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace ddprun {

// The blocks of mem_alloc. Tensors in them may outlive the double.
struct NcclDoubleMemory {
  std::mutex mutex;
  std::map<void*, std::size_t> blocks;
};

inline NcclDoubleMemory& double_memory() {
  static NcclDoubleMemory the_memory;
  return the_memory;
}

// Returns the current device of the calling thread.
inline int& double_device() {
  thread_local int the_device = 0;
  return the_device;
}

}  // namespace ddprun
