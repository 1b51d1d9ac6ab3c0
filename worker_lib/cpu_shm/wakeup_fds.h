// WakeupFds: what wakes a rank of this node that sleeps in poll(2).
//
// The progress's futex wakes who waits for other ranks' memory only; messages come over sockets, too,
// and one thread has to hear both. So the node's first rank makes an eventfd for every rank and
// hands them to all when they meet. (futex_waitv cannot wait for a socket, and a second thread for
// one of the two would cost every message a switch.) A wakeup is rung only when its rank has said
// that it sleeps, or when something happens that concerns everybody.
//
// Any thread.
#pragma once

#include <vector>

#include "base/unique_fd.h"

namespace ddprun {

class WakeupFds {
 public:
  // wakeups: by local index, non-blocking eventfds.
  WakeupFds(std::vector<UniqueFd> wakeups, int own) : wakeups_(std::move(wakeups)), own_(own) {}

  void notify(int local) const;
  void notify_own() const { notify(own_); }
  void notify_all() const;

  // Readable from when the own wakeup was rung until it is drained.
  int own_fd() const { return wakeups_[static_cast<std::size_t>(own_)].get(); }
  void drain() const;

 private:
  std::vector<UniqueFd> wakeups_;
  int own_;
};

}  // namespace ddprun
