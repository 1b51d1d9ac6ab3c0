// ShmSegment: memory that the ranks of a node share.
//
// A memfd: it has no name, so nothing is left behind when its processes are killed at any instant,
// and /dev/shm (64 MB in many containers) neither limits nor shows it. Pages are taken from the
// system when they are first touched and count as shared memory of the job (in a container: against
// its memory limit). It cannot be shrunk, so no other holder of the descriptor can make an access
// fault.
//
// Behind the part whose layout the ranks agree on lies the heap: addresses for tensors that all ranks
// reach, several times the machine's memory, of which only what is used exists. Where so many addresses
// or so long a file are not to be had (ulimit -v, ulimit -f) there is none.
//
// An owned resource: unmapped and closed with the object. Any thread may use the memory.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

class ShmSegment {
 public:
  // A new segment of zeros, with a heap where there can be one.
  static Result<ShmSegment> create(std::size_t bytes);
  // Maps a segment that another process has made; kProtocol if it is shorter than `bytes` or not sealed.
  static Result<ShmSegment> adopt(UniqueFd memfd, std::size_t bytes);

  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&&) = delete;
  ~ShmSegment();

  char* at(std::size_t offset) const { return static_cast<char*>(memory_) + offset; }
  int fd() const { return memfd_.get(); }
  // Empty where this process has no room for it.
  std::span<char> heap() const { return heap_; }
  // Where the heap begins in the file.
  std::size_t heap_offset() const { return bytes_; }

 private:
  ShmSegment(UniqueFd memfd, void* memory, std::size_t bytes);
  void map_heap(std::size_t bytes);

  UniqueFd memfd_;
  void* memory_;
  std::size_t bytes_;
  std::span<char> heap_;
};

}  // namespace ddprun
