// DesyncDetector: decides when a rank reads the notes of the others (collective_log.h), and when
// it believes a disagreement.
//
// It reads the notes of its own node every 80 ms, which costs a look at shared memory. It asks
// other nodes for theirs, which costs messages:
//
//   the first rank of a node that shows a note     4 times a second when there was no progress for
//                                                  250 ms; else twice a second, because NCCL may
//                                                  also give wrong results and continue
//   a rank that waits for a message of a peer      after 500 ms, then more seldom the longer it
//   whose note it does not see                     waits: maybe no other rank of the node is
//                                                  active
//
// A disagreement that is seen while calls make progress is believed only if the next look sees
// it, too. A new call is not yet in the notes of all ranks.
//
// A state machine without a clock: time is an argument. One thread at a time.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "worker_lib/nccl/collective_log.h"

namespace ddprun {

class DesyncDetector {
 public:
  DesyncDetector(int rank, TimePoint now)
      : rank_(rank), moved_at_(now), looked_at_(now), asked_at_(now) {}

  struct Sight {
    // Returns the notes of all ranks. patience: see CpuGroup::notes().
    std::function<CallNotes(Duration patience)> read;
    // See CollectiveLog.
    std::function<bool(CallNotesView)> awaits_unseen;
  };
  // Returns the disagreement of the ranks, if there is one. Call it every few tens of
  // milliseconds while a call is in flight. has_moved: since the last look a call has ended, or
  // none was in flight.
  std::optional<std::string> look(TimePoint now, bool has_moved, const Sight& sight);

 private:
  bool asks(TimePoint now, const CallNotes& notes, const Sight& sight) const;

  const int rank_;
  TimePoint moved_at_;   // when has_moved was last true
  TimePoint looked_at_;  // for notes of the own node
  TimePoint asked_at_;   // for notes of other nodes
  bool is_suspected_ = false;
};

}  // namespace ddprun
