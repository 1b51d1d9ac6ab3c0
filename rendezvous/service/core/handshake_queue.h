// HandshakeQueue: which clients may begin a TLS handshake, and which wait because their address has
// too many in flight (rendezvous/auth/core/handshake_turns.h).
//
// The newest waiting handshake goes first, because the clients of older ones may have given up. One
// that has waited for HandshakeTurns::kWait, and the oldest of more than kWaiting, is put off.
//
// A value type without a clock and sockets; one owner thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/auth/core/handshake_turns.h"
#include "rendezvous/membership/core/output_inquiries.h"

namespace ddprun {

class HandshakeQueue {
 public:
  // Returns whether that client is still connected.
  using IsHere = std::function<bool(AgentConnectionId)>;

  // What to do now. Each client is named once in the life of the queue.
  struct Step {
    std::vector<AgentConnectionId> begin;    // the handshake of each
    std::vector<AgentConnectionId> put_off;  // each is told to try later
    std::vector<AgentConnectionId> gone;     // each has left while it waited
    std::optional<TimePoint> next;           // call serve() then; nullopt: the earlier time stays
  };

  // turns: of one address at a time.
  explicit HandshakeQueue(std::size_t turns = HandshakeTurns::kTurns) : turns_(turns) {}

  // Adds a client that has sent the first bytes of TLS.
  Step add(const std::string& address, AgentConnectionId client, TimePoint now,
           const IsHere& is_here);
  // Notes that a handshake of that address is complete.
  Step complete(const std::string& address, TimePoint now, const IsHere& is_here);
  // Begins handshakes that wait, and puts off late ones.
  Step serve(TimePoint now, const IsHere& is_here);

 private:
  struct Waiting {
    AgentConnectionId client;
    TimePoint since;
  };

  void serve(Step& step, TimePoint now, const IsHere& is_here);
  bool serve_newest(Step& step, const std::string& address, std::deque<Waiting>& waiting,
                    TimePoint now, const IsHere& is_here);

  HandshakeTurns turns_;
  std::map<std::string, std::deque<Waiting>> waiting_;  // by address, the newest last
};

}  // namespace ddprun
