// SharedHeap: this rank's part of the segment's heap, for tensors that the other ranks of the node reach.
//
// A block is named to the others by its place; at() finds it in their mappings. Blocks outlive the group,
// and so does the heap then. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/fork_mark.h"
#include "worker_lib/core/free_ranges.h"
#include "worker_lib/cpu/shm_segment.h"

namespace ddprun {

class SharedHeap : public std::enable_shared_from_this<SharedHeap> {
 public:
  SharedHeap(std::shared_ptr<const ShmSegment> segment, int local_count, int local);

  // Zeros, beginning with a page; its memory goes back to the system with the last pointer to it, in
  // the process that asked for it. Null where there is no heap or no room in it.
  std::shared_ptr<char> allocate(std::size_t bytes);

  // Where memory of this process lies in this rank's part; nullopt if it lies elsewhere.
  std::optional<std::size_t> place_of(const void* data, std::size_t bytes) const;
  // The same place in the part of a rank of the node.
  char* at(int local, std::size_t place) const { return base_ + local * each_ + place; }

 private:
  void release(char* data, std::size_t bytes);

  std::shared_ptr<const ShmSegment> segment_;
  char* base_;        // of the first rank's part
  std::size_t each_;  // bytes of a part
  int local_;
  ForkMark made_by_;
  std::mutex mutex_;  // guards what follows
  FreeRanges free_;
};

}  // namespace ddprun
