// GenerationStore: this node's share of the store of a generation (docs/wire_protocol.md, "The
// store"): a port for it, and the store itself where rank 0 lives here.
//
//   prepare()  a port is there, before anybody knows who gets rank 0
//   serve()    a generation begins: the store is served, or kept for rank 0, or the port is closed
//   close()    nothing of it is left; prepare() follows before the next generation
//
// Owner: Agent, on its one thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/log.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/agent/rendezvous_handler.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/protocol/core/control_message.h"
#include "rendezvous/store/server.h"

namespace ddprun {

struct AgentConfig;

class GenerationStore {
 public:
  // meeting: its embedded service shows this store, and shares its port with it in static mode.
  // checkpoint_announced: a worker has said so in this generation's store; called from the
  // io_context, also after a close(). REQUIRES: all of them outlive it.
  GenerationStore(boost::asio::io_context& io, Logger& log, const AgentConfig& config,
                  RendezvousHandler& meeting, std::function<void(Generation)> checkpoint_announced);

  // The error says which ports are taken.
  Result<void> prepare();
  void serve(const Assignment& assignment);
  void close();

  // Where it would be on this node; 0: nothing has been prepared.
  std::uint16_t port() const;

 private:
  boost::asio::io_context& io_;
  Logger& log_;
  const AgentConfig& config_;
  RendezvousHandler& rendezvous_;
  std::function<void(Generation)> checkpoint_announced_;
  std::optional<Listener> listener_;    // of the next generation's store
  std::unique_ptr<StoreServer> store_;  // of this generation, where rank 0 lives here
  UniqueFd kept_port_;                  // the same, where rank 0 itself serves the store
};

}  // namespace ddprun
