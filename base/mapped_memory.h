// MappedMemory: memory that mmap(2) has mapped. It is unmapped with the object; null: none. Any
// thread.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>

namespace ddprun {

struct Unmap {
  std::size_t bytes = 0;
  void operator()(void* memory) const { munmap(memory, bytes); }
};

template <class T>
using MappedMemory = std::unique_ptr<T[], Unmap>;

}  // namespace ddprun
