// LocalAgents: the agents in the process of a service, which need no connection.
//
// Owner: ServiceClients, on the io_context's thread, which makes all calls and gets all
// callbacks.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

class LocalAgents {
 public:
  // REQUIRES: io outlives this object.
  explicit LocalAgents(boost::asio::io_context& io) : io_(io) {}

  // Adds an agent. deliver, ranks: as of RendezvousServer::attach().
  void add(AgentConnectionId id, std::function<void(const ServiceMessage&)> deliver,
           std::function<RankReport()> ranks);
  // Removes it: what was not delivered yet is dropped. No effect if it is not there.
  void remove(AgentConnectionId id) { agents_.erase(id); }
  void clear() { agents_.clear(); }

  bool empty() const { return agents_.empty(); }
  bool contains(AgentConnectionId id) const { return agents_.contains(id); }
  // Delivers the message from the io_context, never from within. REQUIRES: contains(id).
  void deliver(AgentConnectionId id, ServiceMessage message);
  // Returns the rank reports of the agents that have ranks().
  std::vector<std::pair<AgentConnectionId, RankReport>> ranks() const;

 private:
  struct Agent {
    std::function<void(const ServiceMessage&)> deliver;
    std::function<RankReport()> ranks;  // null: it has none
  };

  boost::asio::io_context& io_;
  std::map<AgentConnectionId, std::shared_ptr<Agent>> agents_;
};

}  // namespace ddprun
