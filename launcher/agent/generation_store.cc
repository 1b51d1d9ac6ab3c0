#include "launcher/agent/generation_store.h"

#include <boost/asio/post.hpp>
#include <string>
#include <utility>

#include "base/worker_env.h"
#include "launcher/agent/agent.h"

namespace ddprun {

namespace asio = boost::asio;

GenerationStore::GenerationStore(asio::io_context& io, Logger& log, const AgentConfig& config,
                                 RendezvousHandler& rendezvous,
                                 std::function<void(Generation)> checkpoint_announced)
    : io_(io),
      log_(log),
      config_(config),
      rendezvous_(rendezvous),
      checkpoint_announced_(std::move(checkpoint_announced)) {}

// Listens in advance. Clients that connect before the store accepts wait in the backlog and need
// no retry.
Result<void> GenerationStore::prepare() {
  const bool is_ours = config_.options.has_agent_store();
  if (rendezvous_.shared_port() && is_ours) return {};
  const bool only_here = config_.rendezvous.is_local();
  const std::string host = only_here ? "127.0.0.1" : "*";
  const PortRange ports = config_.options.ports;
  Result<Listener> listener = is_ours ? listen_tcp(host, ports) : reserve_tcp(host, ports);
  if (!listener) {
    Error error = std::move(listener).error().within("listen for the store's clients");
    return ports == PortRange() ? error : std::move(error).within("--port-range");
  }
  listener_ = std::move(*listener);
  return {};
}

void GenerationStore::serve(const Assignment& assignment) {
  UniqueFd socket;
  if (listener_) socket = std::move(listener_->socket);
  listener_.reset();
  if (assignment.node_rank != NodeRank(0)) return;  // another node hosts it; close the port
  if (!config_.options.has_agent_store()) {
    kept_port_ = std::move(socket);
    return;
  }
  StoreServerOptions options;
  if (!assignment.peers.empty()) {  // an older service does not send them
    options.allow = config_.store_allow;
    for (const std::string& address : assignment.peers) options.allow->add(address);
  }
  // Other nodes may run their workers as other users, and this node cannot find out.
  options.this_user_only = assignment.node_count == 1;
  // The store calls this from within its own work, but checkpoint_announced_ may close the
  // store.
  options.watched_key = "/" + std::string(kCheckpointKey);
  options.watched_key_set = [this, generation = assignment.generation] {
    asio::post(io_, [this, generation] { checkpoint_announced_(generation); });
  };
  store_ = std::make_unique<StoreServer>(io_, log_, std::move(socket), options);
  store_->start();
  RendezvousServer* const server = rendezvous_.server();
  if (server == nullptr) return;
  server->show_store(store_.get());
  if (rendezvous_.shared_port()) server->share_port_with(store_.get());
}

void GenerationStore::close() {
  if (RendezvousServer* const server = rendezvous_.server()) {
    server->show_store(nullptr);
    server->share_port_with(nullptr);
  }
  store_.reset();
  kept_port_.reset();
}

std::uint16_t GenerationStore::port() const {
  return listener_ ? listener_->address.port : rendezvous_.shared_port().value_or(0);
}

}  // namespace ddprun
