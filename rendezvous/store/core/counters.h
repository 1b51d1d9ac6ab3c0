// What the servers count of themselves, for whoever looks from outside
// (rendezvous/http/core/metrics_page.h). Value types; one owner thread each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/clock.h"
#include "rendezvous/store/core/wire_format.h"

namespace ddprun {

// Of a store. Since the server was made, but for the last group, which is now.
struct StoreCounters {
  std::uint64_t accepted = 0;                             // connections, adopted ones too
  std::array<std::uint64_t, Refusal::kKinds> refusals{};  // connections closed by us, by Kind
  std::uint64_t bytes_received = 0;
  std::uint64_t bytes_sent = 0;
  std::array<std::uint64_t, kCommandRules.size()> requests{};  // by Command

  std::size_t connections = 0;
  std::size_t waiting = 0;  // connections whose WAIT, FETCH or BARRIER is pending
  std::size_t keys = 0;
  std::size_t held_bytes = 0;  // KvState::held_bytes()
};

// Of the HTTP pages.
struct HttpCounters {
  std::map<int, std::uint64_t> answers;  // by status
  std::size_t connections = 0;           // now
};

// How late an event loop came to its work, as a Prometheus histogram.
struct LoopLag {
  using ms = std::chrono::milliseconds;
  static constexpr std::array<Duration, 7> kBounds{ms(1),    ms(10),   ms(100), ms(500),
                                                   ms(1000), ms(2000), ms(4000)};

  std::array<std::uint64_t, kBounds.size()> within{};  // of a bound, and of no smaller one
  std::uint64_t measured = 0;
  Duration sum{0};

  void note(Duration lag) {
    ++measured;
    sum += lag;
    for (std::size_t i = 0; i < kBounds.size(); ++i) {
      if (lag > kBounds[i]) continue;
      ++within[i];
      return;
    }
  }
};

// Of a rendezvous service, beside what its JobTable counts.
struct ServiceCounters {
  std::uint64_t closed_before_hello =
      0;                             // connections: for what they sent, or did not send in time
  std::uint64_t blocked = 0;         // wrong proofs that were told to try later
  std::uint64_t bytes_received = 0;  // from agents on TCP, and so below
  std::uint64_t bytes_sent = 0;
  std::size_t connections = 0;  // now
  LoopLag lag;
};

}  // namespace ddprun
