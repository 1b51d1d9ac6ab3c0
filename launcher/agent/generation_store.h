// GenerationStore: this node's part of a generation's store (docs/reference/wire_protocol.md, "The
// store"). It holds a port for the store, and the store itself if rank 0 runs on this node.
//
//   prepare()  reserves a port before it is known which node gets rank 0
//   serve()    begins a generation: serves the store, keeps the port for rank 0, or closes the port
//   close()    closes everything; prepare() follows before the next generation
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
  // rendezvous: the handler whose embedded service shows this store, and in static mode shares its
  // port with it. checkpoint_announced: called when a worker announces a checkpoint in this
  // generation's store. It is called from the io_context, also after a close(). REQUIRES: all
  // arguments outlive this object.
  GenerationStore(boost::asio::io_context& io, Logger& log, const AgentConfig& config,
                  RendezvousHandler& rendezvous,
                  std::function<void(Generation)> checkpoint_announced);

  // Reserves a port. The error says which ports are taken.
  Result<void> prepare();
  void serve(const Assignment& assignment);
  void close();

  // Returns the port that the store has if this node hosts it; 0 if nothing is prepared.
  std::uint16_t port() const;

 private:
  boost::asio::io_context& io_;
  Logger& log_;
  const AgentConfig& config_;
  RendezvousHandler& rendezvous_;
  std::function<void(Generation)> checkpoint_announced_;
  std::optional<Listener> listener_;    // for the next generation's store
  std::unique_ptr<StoreServer> store_;  // of this generation, if rank 0 runs here
  UniqueFd kept_port_;                  // the same, if rank 0 itself serves the store
};

}  // namespace ddprun
