// PeerMemory: reads the private memory of the other ranks of this node with one copy, where the
// kernel allows it. It uses process_vm_readv(2), which needs the same user and no policy against
// it; some containers have such a policy.
//
// This class does not notice that a rank dies while it is read, or that another process has
// since got its number. PeerWatch notices it: the bytes read count only if it reports no
// failure. Thread-safe.
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
  // lives: pidfds by local index. Tests what the kernel allows.
  explicit PeerMemory(std::span<const UniqueFd> lives);

  // Returns whether this rank can read all ranks of the node. Another rank may be allowed less.
  bool can_be_read() const { return can_be_read_; }

  // Copies from the rank's address space; `from` and `to` have the same size. Returns false if
  // the memory cannot be read any more.
  bool read(int local, const Scattered<const char>& from, const Scattered<char>& to) const;

 private:
  std::vector<pid_t> pids_;  // by local index
  bool can_be_read_ = false;
};

}  // namespace ddprun
