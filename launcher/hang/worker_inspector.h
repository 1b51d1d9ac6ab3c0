// WorkerInspector: sees what the workers of this node do, when some of them hang: from their pages, from
// the kernel, and where gdb or py-spy is there, from their stacks.
//
// Threads of its own ask kernel and debuggers, because that takes seconds; nobody waits for them. Owner: the
// agent, on its one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "launcher/hang/worker_pages.h"
#include "rendezvous/protocol/core/hang_analysis.h"

namespace ddprun {

// What a worker's page says of it now; no page: nothing is known but how long.
WorkerSnapshot snapshot_of(LocalRank worker, const WorkerPage* page, TimePoint now);

class WorkerInspector {
 public:
  // For all debuggers together.
  static constexpr Duration kPatience = std::chrono::seconds(30);

  WorkerInspector() = default;
  ~WorkerInspector() { forget(); }
  WorkerInspector(const WorkerInspector&) = delete;
  WorkerInspector& operator=(const WorkerInspector&) = delete;

  // Fills in what the workers do who are in no collective (those in one are where their record says),
  // by their `pid`, and calls `done` with all of them from a thread of its own. Where no thread can be
  // started it calls `done` with what is known, before it returns. What was asked before is dropped.
  void begin(std::vector<WorkerSnapshot> workers, std::function<void(std::vector<WorkerSnapshot>)> done);

  // Ends the debugger that runs, without waiting for that; `done` has been called or never is.
  void forget();

 private:
  struct Desk;  // what the thread shares with its owner

  std::shared_ptr<Desk> desk_;  // null: nothing was asked, or it is forgotten
};

}  // namespace ddprun
