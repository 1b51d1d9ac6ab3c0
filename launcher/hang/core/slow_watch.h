// SlowWatch: finds the workers of this node that make the others wait. It joins the steps that the
// workers have reported into steps of all, and passes them to SlowRanks.
//
// A worker's own time in a step is the time between two reports without the time that it was
// blocked in calls into groups. Pages keep the last kStepMarks reports. Between two looks, more
// steps may have been done; those are left out.
//
// Owner: SlowMonitor, on the agent's thread, while a generation runs. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/worker_page.h"
#include "rendezvous/protocol/core/slow_ranks.h"

namespace ddprun {

class SlowWatch {
 public:
  // A rank is named at most this often in a generation.
  static constexpr int kMostNamed = 3;

  // Begins a generation. node: for the texts; empty: the job has no other node.
  void begin(Rank first_rank, std::size_t workers, std::string node);

  // Takes the last reports of each worker, in their order. Returns a line for each worker that is
  // now slow and was not before, and for each that is not slow any more.
  std::vector<std::string> look(const std::vector<std::vector<StepEntry>>& marks);

  // Returns what the worker costs the others: "the others wait 12 % of each step". Empty: it
  // is not slow.
  std::string slow(std::size_t worker) const;

 private:
  void take_steps(const std::vector<std::vector<StepEntry>>& marks);

  int first_rank_ = 0;
  std::string node_;
  SlowRanks ranks_{{}};
  std::uint64_t last_taken_ = 0;  // the number of the report of worker 0
  std::vector<int> named_;        // how often each worker was named
  std::vector<SlowFinding> findings_;
};

}  // namespace ddprun
