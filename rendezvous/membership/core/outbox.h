// Outbox: what a service with a disk may say only when what it tells of is safe there.
//
// Owner: RendezvousServer, on its one thread. Pure. A directive says all there is to say, so for
// each connection only the newest one waits, behind its Welcome at most and between answers to
// requests, of which kAnswers may wait: who asks for more while the disk does not answer gets none.
// A signal that is passed on to workers waits behind the directive that starts them; kPassOns of them at
// most.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "rendezvous/membership/core/job_table.h"

namespace ddprun {

class Outbox {
 public:
  using Send = ServiceOutput::Send;
  static constexpr std::size_t kAnswers = 16;
  static constexpr std::size_t kPassOns = 16;

  // What may leave at once; nullopt: it waits.
  std::optional<Send> put(Send send);
  // Every change up to that number is safe now: what may leave, for each connection in its order.
  std::vector<Send> take_safe(std::uint64_t number);
  // The connection is gone, or what waits for it will never be true.
  void forget(AgentConnectionId connection) { waiting_.erase(connection); }

  // Every change up to here is safe; 0 at first.
  std::uint64_t durable() const { return durable_; }

 private:
  std::uint64_t durable_ = 0;
  std::map<AgentConnectionId, std::deque<Send>> waiting_;
};

}  // namespace ddprun
