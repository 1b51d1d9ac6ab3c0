// status_page(): the page /status.json with details of the service: its jobs, their nodes and
// ranks, and the latest events. docs/how-to/monitoring.md describes it.
//
// Agent ids and instances are left out, because another process could use them to take an
// agent's place. The page has at most kMaxStatusBytes. Each job has at most kMaxJobBytes of them,
// and kMaxRanksBytes for its ranks if that leaves no job out. The page says how many jobs, nodes
// and ranks were left out. Times of BootClock are converted to calendar times only here. Pure; any
// thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "rendezvous/membership/core/job_table.h"

namespace ddprun {

inline constexpr std::size_t kMaxStatusBytes = 1 << 20;
inline constexpr std::size_t kMaxJobBytes = 256 * 1024;
inline constexpr std::size_t kMaxRanksBytes = 384 * 1024;

// Moment: the same moment on both clocks.
struct Moment {
  TimePoint boot;
  std::chrono::system_clock::time_point calendar;
};

// Returns a text like "2026-11-21T18:50:00.123Z".
std::string calendar_text(const Moment& now, TimePoint when);

// only: show this job alone, even if the table has others; empty: show all. max_bytes: at
// least kMaxJobBytes + 4096.
struct StatusPageOptions {
  std::string only = {};
  std::size_t max_bytes = kMaxStatusBytes;
};
std::string status_page(const JobTable& jobs, const Moment& now,
                        const StatusPageOptions& options = {});

}  // namespace ddprun
