// SharedHeap: this rank's part of the segment's heap, for tensors that the other ranks of the node reach.
//
// A block is named to the others by its place; at() finds it in their mappings. Blocks outlive the group,
// and so does the heap then. Any thread.
//
// A rank that is stopped in the middle of a collective may write to this rank's part long after the
// collective has failed here. make_private() takes the memory away from it: the addresses stay, the pages
// behind them become this process's own. From then on the heap gives out no memory, and no address is used
// again, so what the late rank writes reaches nobody.
#pragma once

#include <cstddef>
#include <cstdint>
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

  // Zeros, beginning with a page; its memory goes back to the system with the last pointer to it, in
  // the process that asked for it. Null where there is no heap or no room in it.
  std::shared_ptr<char> allocate(std::size_t bytes);

  // Where memory of this process lies in this rank's part; nullopt if it lies elsewhere.
  std::optional<std::size_t> place_of(const void* data, std::size_t bytes) const;
  // Gives the pages of memory of this rank's part to this process alone. They keep their contents; writes by
  // this process's other threads meanwhile are kept, too. Costs a copy, but no more memory: the shared pages
  // go back to the system. False: the kernel refuses (strict overcommit, ulimit -d or -v, too many mappings),
  // and nothing has changed.
  bool make_private(std::size_t place, std::size_t bytes);

  // The same place in the part of a rank of the node.
  char* at(int local, std::size_t place) const { return base_ + local * each_ + place; }

 private:
  void release(char* data, std::size_t bytes);
  void punch(std::size_t place, std::size_t bytes) const;

  std::shared_ptr<const ShmSegment> segment_;
  char* base_;        // of the first rank's part
  std::size_t each_;  // bytes of a part
  int local_;
  ForkMark made_by_;
  std::mutex mutex_;  // guards what follows
  FreeRanges free_;
  bool is_retired_ = false;  // a late rank may write to it
};

}  // namespace ddprun
