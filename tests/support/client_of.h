// A client of a store that listens on this machine.
#pragma once

#include <cstdint>
#include <memory>

#include "rendezvous/store_client.h"

namespace ddprun::testing_support {

inline Result<std::unique_ptr<StoreClient>> client_of(std::uint16_t port) {
  return StoreClient::connect({.address = {"127.0.0.1", port}});
}

}  // namespace ddprun::testing_support
