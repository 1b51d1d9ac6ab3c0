// Counters of the service and its HTTP pages, for monitoring (rendezvous/http/core/metrics_page.h).
// Value types; one owner thread each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/clock.h"

namespace ddprun {

// HttpCounters: of the HTTP pages.
struct HttpCounters {
  std::map<int, std::uint64_t> answers;  // by status
  std::size_t connections = 0;           // now
};

// TimeHistogram: times, as a Prometheus histogram.
struct TimeHistogram {
  using ms = std::chrono::milliseconds;
  static constexpr std::array<Duration, 7> kBounds{ms(1),    ms(10),   ms(100), ms(500),
                                                   ms(1000), ms(2000), ms(4000)};

  // At most this bound, and above the smaller ones.
  std::array<std::uint64_t, kBounds.size()> within{};
  std::uint64_t measured = 0;
  Duration sum{0};

  void note(Duration time) {
    ++measured;
    sum += time;
    for (std::size_t i = 0; i < kBounds.size(); ++i) {
      if (time > kBounds[i]) continue;
      ++within[i];
      return;
    }
  }
};

// ServiceCounters: of a rendezvous service, in addition to what its JobTable counts.
struct ServiceCounters {
  std::uint64_t closed_before_hello = 0;  // connections, for what they sent or did not send in time
  std::uint64_t blocked = 0;              // wrong proofs that were answered with "try later"
  std::uint64_t bytes_received = 0;       // from agents on TCP; the same holds for the fields below
  std::uint64_t bytes_sent = 0;
  std::size_t connections = 0;  // now
  TimeHistogram lag;            // how late the event loop began its work
};

// EtcdCounters: of a service that keeps its state in etcd.
struct EtcdCounters {
  bool leads = false;     // now, and may answer agents
  std::int64_t term = 0;  // while it leads
  TimeHistogram took;     // requests
  std::uint64_t errors = 0;
};

}  // namespace ddprun
