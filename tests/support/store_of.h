// store_of(): connects to a store on loopback, as the worker library does.
#pragma once

#include <cstdint>
#include <memory>

#include "ddprun/store.h"

namespace ddprun::testing_support {

inline std::shared_ptr<Store> store_of(std::uint16_t port) {
  return connect_tcp_store({.port = port, .connect_timeout = std::chrono::seconds(20)});
}

}  // namespace ddprun::testing_support
