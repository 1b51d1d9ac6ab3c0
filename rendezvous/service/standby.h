// Standby: answers agents while this service does not lead. It lets an agent wait for an election,
// or sends it to the leader.
//
// Owner: RendezvousServer, on the io_context's thread, which makes all calls and gets all
// callbacks. No callback follows the end of this object.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "rendezvous/service/agent_sessions.h"
#include "rendezvous/service/etcd_role.h"

namespace ddprun {

struct StandbyEvents {
  // Takes the message of an agent that has waited, because this service leads now.
  std::function<void(AgentConnectionId, const AgentMessage& message)> receive;
  std::function<void(AgentConnectionId, const Silence& answer)> send_away;
};

class Standby : public std::enable_shared_from_this<Standby> {
 public:
  // How long an agent that comes to a standby waits for the election of a leader. It is less than
  // an agent waits for an answer.
  static constexpr Duration kElectionTime = std::chrono::seconds(1);

  // REQUIRES: all references outlive this object.
  Standby(boost::asio::io_context& io, EtcdRole& role, const AgentSessions& sessions,
          StandbyEvents events)
      : role_(role), sessions_(sessions), events_(std::move(events)), timer_(io) {}

  // Takes the message if this service does not lead. Returns false if it leads: the table has to
  // take the message.
  bool take(const SessionPtr& session, const AgentMessage& message);
  // Answers the agents that wait. Call it when this service leads, or knows the leader.
  void answer();
  // Drops what this agent has said, because its connection has ended.
  void forget(AgentConnectionId id) { waiting_.erase(id); }

 private:
  void let_wait(AgentConnectionId id, const AgentMessage& message);

  EtcdRole& role_;
  const AgentSessions& sessions_;
  const StandbyEvents events_;
  std::map<AgentConnectionId, AgentMessage> waiting_;  // what they said, by session
  boost::asio::steady_timer timer_;                    // the end of their wait
};

}  // namespace ddprun
