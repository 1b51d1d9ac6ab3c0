// metrics_page(): the page /metrics with the figures of the service, in Prometheus' text
// format 0.0.4. docs/reference/metrics.md lists the families; a test compares the two.
//
// Job ids come from untrusted clients, so they are escaped. Only kJobsListed jobs get series
// of their own, so that the page stays below kMaxMetricsBytes. Pure; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "rendezvous/http/core/counters.h"
#include "rendezvous/membership/core/job_table.h"
#include "rendezvous/store/core/counters.h"

namespace ddprun {

inline constexpr std::size_t kJobsListed = 100;
inline constexpr std::size_t kMaxMetricsBytes = 2 << 20;

// ProcessFigures: figures of the process that serves the page. The page uses the names of
// Prometheus' client libraries for them.
struct ProcessFigures {
  Duration cpu{};
  std::uint64_t resident_bytes = 0;
  std::uint64_t virtual_bytes = 0;
  std::uint64_t open_descriptors = 0;
  std::uint64_t max_descriptors = 0;
  std::uint64_t started = 0;  // seconds since 1970
};

struct Figures {
  ServiceCounters service;
  HttpCounters http;
  std::optional<StoreCounters> store;  // the store of this process, if it has one
  ProcessFigures process = {};
  bool state_writable = true;  // also true where no state is kept
  std::optional<EtcdCounters> etcd = {};
};

// now: the time up to which the times of jobs are counted.
std::string metrics_page(const JobTable& jobs, const Figures& figures, TimePoint now);

}  // namespace ddprun
