// BenchReport: the results of ddprun bench, the odd nodes among them, and the text for people.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/gpu_speeds.h"

namespace ddprun {

struct BenchNode {
  std::string host;
  double memory_gbs = 0;  // GB/s that a memcpy of one core copies
  GpuSpeeds gpu = {};
};

struct BenchReduce {
  std::uint64_t bytes = 0;  // of each rank
  double seconds = 0;       // of one all_reduce, median
};

struct BenchReport {
  int ranks = 0;
  std::vector<BenchNode> nodes = {};
  // [a][b]: from node a to node b. The diagonal is 0.
  std::vector<std::vector<double>> latency_s = {};  // one way, half of a round trip of 8 bytes
  std::vector<std::vector<double>> link_gbs = {};
  std::vector<BenchReduce> all_reduces = {};
};

// Returns the median, of an even number of values the upper one of the two in the middle. 0: there
// are none.
double median(std::vector<double> values);

// Returns a sentence for each node and each way in which it is odd. A node is odd if its memory or
// the median of its links has less than 3/4 of the median of the other nodes. It is also odd if the
// median of its latencies is more than twice theirs and 20 us above. With two nodes, the one link
// cannot show whose fault it is. A node is also odd if it has fewer GPUs than that median, if a GPU
// is not fit, or if its slowest GPU has less than 3/4 of the median of the other nodes with GPUs.
std::vector<std::string> odd_nodes(const BenchReport& report);

// Returns tables (with GPUs if a node has some), a picture of the links (a digit for each, in
// tenths of the fastest one), and the odd nodes. Ends with a line break.
std::string to_text(const BenchReport& report);

}  // namespace ddprun
