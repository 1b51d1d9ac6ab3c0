#include "rendezvous/service/local_agents.h"

#include <boost/asio/post.hpp>

namespace ddprun {

void LocalAgents::add(AgentConnectionId id, std::function<void(const ServiceMessage&)> deliver,
                      std::function<RankReport()> ranks) {
  agents_[id] = std::make_shared<Agent>(Agent{std::move(deliver), std::move(ranks)});
}

void LocalAgents::deliver(AgentConnectionId id, ServiceMessage message) {
  boost::asio::post(io_, [weak = std::weak_ptr(agents_.at(id)), message = std::move(message)] {
    if (const std::shared_ptr<Agent> agent = weak.lock()) agent->deliver(message);
  });
}

std::vector<std::pair<AgentConnectionId, RankReport>> LocalAgents::ranks() const {
  std::vector<std::pair<AgentConnectionId, RankReport>> all;
  for (const auto& [id, agent] : agents_) {
    if (agent->ranks) all.emplace_back(id, agent->ranks());
  }
  return all;
}

}  // namespace ddprun
