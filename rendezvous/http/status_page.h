// The service in detail: the page /status.json, with its jobs, their nodes and ranks, and what
// happened last. docs/monitoring.md describes it.
//
// What could be used to take an agent's place (agent ids, instances) is left out. The page has at
// most kMaxStatusBytes and a job at most kMaxJobBytes of them; it says how many jobs, and how many
// nodes of a job, were left out. Times of BootClock become those of the calendar here and nowhere
// else. Pure; any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "rendezvous/membership/core/job_table.h"

namespace ddprun {

inline constexpr std::size_t kMaxStatusBytes = 1 << 20;
inline constexpr std::size_t kMaxJobBytes = 256 * 1024;

// The same moment on both clocks.
struct Moment {
  TimePoint boot;
  std::chrono::system_clock::time_point calendar;
};

// "2026-11-21T18:50:00.123Z"
std::string calendar_text(const Moment& now, TimePoint when);

// only: of this job alone, whatever others there are; empty: of all. max_bytes: kMaxJobBytes and
// 4096 more, or more.
struct StatusPageOptions {
  std::string only = {};
  std::size_t max_bytes = kMaxStatusBytes;
};
std::string status_page(const JobTable& jobs, const Moment& now,
                        const StatusPageOptions& options = {});

}  // namespace ddprun
