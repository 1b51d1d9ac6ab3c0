// The monitor of a spawn(): the process between the program and its ranks.
//
//   the program
//     `- monitor ("ddp-spawn")   forks the ranks, hosts their store, outlives all that they start
//          +- rank 0
//          `- rank 1
//               `- whatever it has started
//
// It is a child subreaper, so that nothing that ranks start can get away from it, and holds the
// program and the ranks by their pidfds. It ends everything when a rank fails, when the program
// asks, and when the program has ended, by SIGKILL too; when it is killed itself, the kernel kills
// the ranks (PR_SET_PDEATHSIG), but not what they have started. What it decides is in
// spawn/core/watch.h. It keeps all signals blocked: a Ctrl-C is for the ranks and the program,
// whose process group it shares.
#pragma once

#include <signal.h>

#include <functional>
#include <string>

#include "base/clock.h"
#include "base/pipe.h"
#include "rendezvous/net/listen.h"
#include "worker_lib/spawn/board.h"

namespace ddprun {

// What the program asks of its monitor, a byte in its pipe.
enum class MonitorOrder : char { kTerminate = 't', kKill = 'k' };

struct MonitorStart {
  SharedSpawnBoard& board;
  Listener listener;  // of the ranks' store
  Pipe orders;        // of MonitorOrders
  // One byte when the ranks have been started; its end is the monitor's.
  Pipe answers;
  UniqueFd program;  // its pidfd
  Duration grace;
  sigset_t signals;  // that the program had blocked: the ranks' mask
  // A rank's work. Returns its exit code; throws nothing.
  std::function<int(int rank)> run_rank;
};

// The life of the monitor, in a process that has just been forked with all signals blocked.
[[noreturn]] void be_monitor(MonitorStart start) noexcept;

}  // namespace ddprun
