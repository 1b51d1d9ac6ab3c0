// RunningService: a RendezvousServer on loopback with its own thread, for tests in the same process.
#pragma once

#include <optional>
#include <utility>

#include "rendezvous/server.h"
#include "tests/support/running_server.h"

namespace ddprun::testing_support {

class RunningService : public RunningServer<RendezvousServer> {
 public:
  // port 0: any that is free.
  explicit RunningService(const ServiceOptions& options = {.service_id = "s"},
                          std::uint16_t port = 0, std::optional<KeptState> kept = std::nullopt)
      : RunningServer({.host = "127.0.0.1", .port = port}, Start::kNow,
                      [&](auto& place, auto& io, Logger& log, std::vector<UniqueFd> sockets) {
                        place.emplace(io, log, options, std::move(sockets), std::move(kept));
                      }) {}
};

}  // namespace ddprun::testing_support
