// RunningService: a RendezvousServer on loopback with its own thread, for tests in the same
// process.
#pragma once

#include <optional>
#include <utility>

#include "rendezvous/service/server.h"
#include "tests/support/running_server.h"

namespace ddprun::testing_support {

class RunningService : public RunningServer<RendezvousServer> {
 public:
  // port 0: any free port.
  explicit RunningService(const ServiceOptions& options = {.service_id = "s"},
                          std::uint16_t port = 0, std::optional<KeptState> kept = std::nullopt)
      : RunningServer({.host = "127.0.0.1", .port = port}, Start::kNow,
                      [&](auto& io, Logger& log, UniqueFd socket) {
                        return RendezvousServer::make(io, log, options, std::move(socket),
                                                      std::move(kept));
                      }) {}

  // text: in the format of Keyring::parse().
  void set_keys(const std::string& text) {
    on_thread([&] { server().set_keys(Keyring::parse(text).value()); });
  }
  void set_tls(const TlsFiles& files) {
    const TlsContextPtr context = TlsContext::for_service(files)->context;
    on_thread([&] { server().set_tls(context); });
  }
  void set_munge(const std::shared_ptr<const Munge>& munge) {
    on_thread([&] { server().set_munge(munge); });
  }
};

}  // namespace ddprun::testing_support
