// Measures this node: a core, memory, the disk of the logs and loopback. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "launcher/node_check/core/judgement.h"

namespace ddprun {

// Computes products of matrices of whole numbers, which are exact in floating point on every
// machine. Returns a digest of the results: kKnownDigest, if the core computes right.
std::uint64_t arithmetic_digest();

// Returns for how long the control groups of this process have stopped it because of their CPU
// quota, since they were made: the sum over the CPUs. Zero if they do not report it.
Duration time_throttled();

// NodeStep: what a measurement does now, for a report that it does not end. Text with static
// storage.
using NodeStep = std::atomic<const char*>;

// Measures for less than 0.2 s on a healthy node. Each measurement is repeated a few times until a
// try is within the limits, so that other work on the node does no harm.
//
// directory: where a file is written, read back and removed; empty: none is. A disk that does not
// answer within some seconds is an error of the disk.
NodeMeasurements measure_node(const std::string& directory, const NodeLimits& limits,
                              NodeStep& step);

}  // namespace ddprun
