// SharedHeap: this rank's part of the segment's heap, for tensors that the other ranks of the
// node reach.
//
// Other ranks identify a block by its place; at() finds it in their mappings. Blocks may outlive
// the group; the heap then does, too. Thread-safe.
//
// A rank may be stopped in the middle of a collective. It may then write to this rank's part long
// after the collective has failed here. make_private() protects the memory from it: the addresses
// stay, but their pages become private to this process. From then on the heap allocates no memory
// and reuses no address. So the bytes that the late rank writes reach no tensor.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>

#include "base/fork_mark.h"
#include "worker_lib/cpu_shm/core/free_ranges.h"
#include "worker_lib/cpu_shm/shm_segment.h"

namespace ddprun {

class SharedHeap : public std::enable_shared_from_this<SharedHeap> {
 public:
  SharedHeap(std::shared_ptr<const ShmSegment> segment, int local_count, int local);

  // Allocates zeroed memory that begins on a page. The memory returns to the system with the
  // last pointer to it, in the process that allocated it. Returns null if there is no heap or no
  // room in it.
  std::shared_ptr<char> allocate(std::size_t bytes);

  // Returns the place of this process's memory in this rank's part; nullopt if it lies
  // elsewhere.
  std::optional<std::size_t> place_of(const void* data, std::size_t bytes) const;
  // Makes the pages of a block of this rank's part private to this process. They keep their
  // contents, including writes by this process's other threads meanwhile. Costs a copy but no
  // more memory: the shared pages return to the system. Returns false if the kernel refuses it
  // (strict overcommit, ulimit -d or -v, too many mappings); then nothing has changed.
  bool make_private(std::size_t place, std::size_t bytes);

  // Returns the address of the same place in the part of a rank of the node.
  char* at(int local, std::size_t place) const { return base_ + local * each_ + place; }

 private:
  void release(char* data, std::size_t bytes);
  void punch(std::size_t place, std::size_t bytes) const;

  std::shared_ptr<const ShmSegment> segment_;
  char* base_;        // of the first rank's part
  std::size_t each_;  // bytes of a part
  int local_;
  ForkMark made_by_;
  std::mutex mutex_;  // guards the members below
  FreeRanges free_;
  bool is_retired_ = false;  // a late rank may write to it
};

}  // namespace ddprun
