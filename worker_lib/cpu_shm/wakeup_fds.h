// WakeupFds: wake ranks of this node that sleep in poll(2).
//
// The futex of SharedProgress only wakes ranks that wait for other ranks' memory. Messages also
// come over sockets, and one thread has to wait for both. So the node's first rank makes an
// eventfd for every rank and sends them to all ranks during the bootstrap. futex_waitv cannot
// wait for a socket. A second thread for one of the two would cost every message a thread
// switch. A rank is notified only when its SleepState says that it sleeps, or at an event that
// concerns all ranks.
//
// Thread-safe.
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

  // Returns this rank's eventfd: readable from its notification until it is drained.
  int own_fd() const { return wakeups_[own_].get(); }
  void drain() const;

 private:
  std::vector<UniqueFd> wakeups_;
  int own_;
};

}  // namespace ddprun
