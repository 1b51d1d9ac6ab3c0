// RunningStore: a StoreServer on loopback with its own thread, for tests in the same process.
#pragma once

#include "rendezvous/store/server.h"
#include "tests/support/running_server.h"

namespace ddprun::testing_support {

class RunningStore : public RunningServer<StoreServer> {
 public:
  explicit RunningStore(const StoreServerOptions& options = {}, Start start = Start::kNow,
                        const HostPort& where = {.host = "127.0.0.1", .port = 0})
      : RunningServer(where, start, [&](auto& io, Logger& log, UniqueFd socket) {
          return std::make_shared<StoreServer>(io, log, std::move(socket), options);
        }) {}

  void stop() {
    on_thread([this] { server().stop(); });
  }
  StoreCounters counters() {
    StoreCounters counters;
    on_thread([&] { counters = server().counters(); });
    return counters;
  }
};

}  // namespace ddprun::testing_support
