// The monitor of a spawn(): the process between the program and its ranks.
//
//   the program
//     `- monitor ("ddp-spawn")   forks the ranks, hosts their store, outlives all that they start
//          +- rank 0
//          `- rank 1
//               `- processes that it has started
//
// It is a child subreaper, so that no process that ranks start can escape it. It watches the
// program and the ranks by their pidfds. It ends all of them when a rank fails, when the program
// asks, and when the program has ended, even by SIGKILL. If the monitor itself is killed, the
// kernel kills the ranks (PR_SET_PDEATHSIG), but not the processes that they have started.
//
// The monitor's decisions are made in worker_lib/spawn/core/watch.h. It keeps all signals blocked,
// because a Ctrl-C is for the ranks and the program, whose process group it shares.
#pragma once

#include <signal.h>

#include <functional>

#include "base/clock.h"
#include "base/pipe.h"
#include "rendezvous/net/listen.h"
#include "worker_lib/spawn/board.h"

namespace ddprun {

// MonitorOrder: a request of the program to its monitor, one byte in a pipe.
enum class MonitorOrder : char { kTerminate = 't', kKill = 'k' };

struct MonitorStart {
  SharedSpawnBoard& board;
  Listener listener;  // for the ranks' store
  Pipe orders;        // carries MonitorOrders
  // Carries one byte when the ranks have been started. It closes when the monitor ends.
  Pipe answers;
  UniqueFd program;  // its pidfd
  Duration grace;
  sigset_t signals;  // the program's signal mask before the fork, which the ranks get
  // Does the work of a rank and returns its exit code. Must not throw.
  std::function<int(int rank)> run_rank;
};

// Runs the monitor, in a process that has just been forked with all signals blocked.
[[noreturn]] void be_monitor(MonitorStart start) noexcept;

}  // namespace ddprun
