// RankBells: what wakes a rank of this node that sleeps in poll(2).
//
// The board's futex wakes who waits for other ranks' memory only; messages come over sockets, too,
// and one thread has to hear both. So the node's first rank makes an eventfd for every rank and
// hands them to all when they meet. (futex_waitv cannot wait for a socket, and a second thread for
// one of the two would cost every message a switch.) A bell is rung only when its rank has said
// that it sleeps, or when something happens that concerns everybody.
//
// Any thread.
#pragma once

#include <vector>

#include "base/unique_fd.h"

namespace ddprun {

class RankBells {
 public:
  // bells: by local index, non-blocking eventfds.
  RankBells(std::vector<UniqueFd> bells, int own) : bells_(std::move(bells)), own_(own) {}

  void ring(int local) const;
  void ring_own() const { ring(own_); }
  void ring_all() const;

  // Readable from when the own bell was rung until it is hushed.
  int own_fd() const { return bells_[static_cast<std::size_t>(own_)].get(); }
  void hush() const;

 private:
  std::vector<UniqueFd> bells_;
  int own_;
};

}  // namespace ddprun
