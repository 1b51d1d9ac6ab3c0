// Judgement: decides whether what was measured on a node is what a fit node shows.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"

namespace ddprun {

// How often something is measured. Invariant: A measurement is repeated until a try is within its
// limit, at least twice and at most 10 times. While a CPU quota stops core and memory, both are
// measured again, 3 times in all. The first try makes pages, fills caches and opens windows.
inline constexpr int kTries = 10;
inline constexpr int kLeastTries = 2;

// NodeLimits: what a fit node must reach. The defaults are far below a healthy node that is busy
// with other work.
struct NodeLimits {
  Duration core = std::chrono::milliseconds(50);  // CPU time of the known computation, at most
  double memory = 500e6;                          // bytes copied each second of CPU time, at least
  double loopback = 20e6;                         // bytes each second, at least
  double link = 10e6;                             // bytes each second of an exchange, at least
  double gpu = 10e9;        // bytes copied each second in a GPU, at least; 0: none is checked
  double throttled = 0.25;  // time in which a CPU quota stopped it, at most. It is a share of that
                            // time and its own CPU time

  friend bool operator==(const NodeLimits&, const NodeLimits&) = default;
};

// The digest that arithmetic_digest() returns on a healthy core.
inline constexpr std::uint64_t kKnownDigest = 0xef9fd62946aa6d2c;

// NodeMeasurements: what was measured on one node.
struct NodeMeasurements {
  std::uint64_t digest = kKnownDigest;
  Duration core{};             // CPU time of the fastest try
  double memory = 0;           // bytes each second of CPU time, of the fastest copy
  double loopback = 0;         // bytes each second, of the fastest try
  double throttled = 0;        // of the least stopped try; a share as in NodeLimits
  std::string disk_error;      // why the disk cannot be written; empty: it can
  std::string loopback_error;  // likewise
};

// LinkMeasurement: what was measured between this node and a neighbour.
struct LinkMeasurement {
  NodeRank node{0};  // the neighbour
  std::string host;
  double bytes_per_s = 0;  // of the fastest try; 0: there is none
  std::string error;       // why there was no try; empty: there was one

  friend bool operator==(const LinkMeasurement&, const LinkMeasurement&) = default;
};

// Return what is wrong, with value and limit: "memory: 310 MB/s (limit 500 MB/s)". Empty: the node
// is fit.
std::string fault_of(const NodeMeasurements& measured, const NodeLimits& limits);

// Judges the links of node rank `own`. A node whose links with both neighbours are slow is not fit.
// Two nodes have one link, which does not show whose fault it is: the node with the higher rank
// gives way. With more nodes, a single measured link is not a fault.
std::string fault_of(const std::vector<LinkMeasurement>& links, NodeRank own, int node_count,
                     const NodeLimits& limits);

}  // namespace ddprun
