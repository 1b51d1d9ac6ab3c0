// ShmSegment: memory that the ranks of a node share.
//
// It is a memfd without a name. So nothing is left over when its processes are killed at any
// instant. /dev/shm (64 MB in many containers) does not limit or show it. The system supplies a
// page when it is first touched. Pages count as shared memory of the job; in a container they
// count against its memory limit. The segment cannot be shrunk, so no other holder of the
// descriptor can make an access fault.
//
// The first part has the layout that the ranks agree on. The heap follows it: addresses for tensors
// that all ranks reach. It is several times as large as the machine's memory, but only its used
// pages exist. Under a limit of file sizes (ulimit -f) it is smaller. If a limit forbids the
// addresses (ulimit -v), there is no heap.
//
// An owned resource: unmapped and closed with the object. Any thread may use the memory.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "base/mapped_memory.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

class ShmSegment {
 public:
  // Makes a new segment of zeros, with a heap where it is possible.
  static Result<ShmSegment> create(std::size_t bytes);
  // Maps a segment that another process has made. Returns kProtocol if it is shorter than
  // `bytes` or not sealed.
  static Result<ShmSegment> adopt(UniqueFd memfd, std::size_t bytes);

  char* at(std::size_t offset) const { return memory_.get() + offset; }
  int fd() const { return memfd_.get(); }
  // Returns the heap; empty if this process has no room for it.
  std::span<char> heap() const { return {heap_.get(), heap_.get_deleter().bytes}; }
  // Returns the offset of the heap in the file.
  std::size_t heap_offset() const { return memory_.get_deleter().bytes; }

 private:
  ShmSegment(UniqueFd memfd, MappedMemory<char> memory)
      : memfd_(std::move(memfd)), memory_(std::move(memory)) {}
  void map_heap(std::size_t bytes);

  UniqueFd memfd_;
  MappedMemory<char> memory_;
  MappedMemory<char> heap_;
};

}  // namespace ddprun
