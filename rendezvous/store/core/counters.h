// StoreCounters: counters of a store server, for monitoring (rendezvous/http/core/metrics_page.h).
// A value type with one owner thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "rendezvous/store/core/wire_format.h"

namespace ddprun {

// Since the server was made. The last group has current values.
struct StoreCounters {
  std::uint64_t accepted = 0;  // connections, including adopted ones
  // Connections closed by the server, by Kind.
  std::array<std::uint64_t, Refusal::kKinds> refusals{};
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_sent = 0;
  std::array<std::uint64_t, kCommandRules.size()> requests{};  // by Command

  std::size_t connections = 0;
  std::size_t waiting = 0;  // connections whose WAIT, FETCH or BARRIER is pending
  std::size_t keys = 0;
  std::size_t held_bytes = 0;  // KvState::held_bytes()
};

}  // namespace ddprun
