// client_of(): connects a StoreClient to a store on this machine.
#pragma once

#include <cstdint>
#include <memory>

#include "rendezvous/store/client.h"

namespace ddprun::testing_support {

// Returns a client of the store at this port. options.address is ignored.
inline Result<std::unique_ptr<StoreClient>> client_of(std::uint16_t port,
                                                      StoreClientOptions options = {}) {
  options.address = {"127.0.0.1", port};
  return StoreClient::connect(options);
}

}  // namespace ddprun::testing_support
