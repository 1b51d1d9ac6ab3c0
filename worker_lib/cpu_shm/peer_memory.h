// PeerMemory: the private memory of the other ranks of this node, read by one copy where the kernel lets us
// (process_vm_readv(2): the same user, and no policy against it, as in some containers).
//
// A rank that dies while it is read, or whose number another process has since, is told by the watch over
// the peers, not here: what was read counts only when that has nothing to say. Any thread.
#pragma once

#include <sys/types.h>

#include <span>
#include <vector>

#include "base/unique_fd.h"
#include "worker_lib/collective/core/scattered.h"

namespace ddprun {

class PeerMemory {
 public:
  PeerMemory() = default;
  // lives: pidfds by local index. Tries what it is allowed.
  explicit PeerMemory(std::span<const UniqueFd> lives);

  // Of all ranks of the node. Another rank may be allowed less.
  bool can_be_read() const { return can_be_read_; }

  // from: of the rank's address space; as many bytes as `to`. False: it cannot be read any more.
  bool read(int local, const Scattered<const char>& from, const Scattered<char>& to) const;

 private:
  std::vector<pid_t> pids_;  // by local index
  bool can_be_read_ = false;
};

}  // namespace ddprun
