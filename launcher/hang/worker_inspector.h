// WorkerInspector: finds out what the workers of this node do when some of them hang. It reads
// their pages and asks the kernel. If gdb or py-spy is installed, it also reads their stacks.
//
// Owner: HangMonitor, on the agent's one thread. Kernel and debuggers are asked on separate
// threads, because that takes seconds. No function waits for those threads.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "launcher/hang/worker_pages.h"
#include "rendezvous/protocol/core/hang_analysis.h"

namespace ddprun {

// Returns what the worker's page says now. Without a page the snapshot has only the local rank.
WorkerSnapshot snapshot_of(LocalRank worker, const WorkerPage* page, TimePoint now);

class WorkerInspector {
 public:
  // Limit for all debuggers together.
  static constexpr Duration kPatience = std::chrono::seconds(30);
  // Limit for the frames of a native stack with Stacks::kOfAll.
  static constexpr std::size_t kMaxStackFrames = 64;

  WorkerInspector() = default;
  ~WorkerInspector() { forget(); }
  WorkerInspector(const WorkerInspector&) = delete;
  WorkerInspector& operator=(const WorkerInspector&) = delete;

  // kIfUnknown: a worker that waits in a collective keeps what its flight record says, unless it
  // is stopped. kOfAll: every worker gets its whole stack, of Python programs with the native
  // frames.
  enum class Stacks { kIfUnknown, kOfAll };

  // Inspects the workers by their `pid` and completes their snapshots. Calls `done` with all
  // snapshots on a separate thread. If no thread can be started, it calls `done` with what is
  // known before it returns. An earlier inspection is dropped.
  void begin(std::vector<WorkerSnapshot> workers,
             std::function<void(std::vector<WorkerSnapshot>)> done,
             Stacks stacks = Stacks::kIfUnknown);

  // Kills the debuggers that run and does not wait for them. If `done` has not been called, it
  // never will be.
  void forget();

 private:
  struct Shared;  // state that the thread shares with its owner

  std::shared_ptr<Shared> shared_;  // null: no inspection, or it was dropped
};

}  // namespace ddprun
