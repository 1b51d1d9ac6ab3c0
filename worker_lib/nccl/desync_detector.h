// DesyncDetector: when a rank reads the notes of the others (collective_log.h), and what it believes.
//
// Those of its own node it reads every 80 ms, which costs a look at shared memory. Other nodes are
// asked, which costs messages:
//
//   by the first rank of a node that shows a note    when nothing has got on for 250 ms, 4 times a
//                                                    second; else twice a second, as NCCL may also
//                                                    give wrong results and go on
//   by one that waits for a message of a peer        after 500 ms, and then the more seldom the
//   whose note it does not see                       longer it waits: nobody else of the node need
//                                                    be at work
//
// A disagreement that is seen while calls get on is believed when the next look sees it, too: a
// call that is new is not in the notes of all ranks yet.
//
// A value machine: time is an argument. One thread at a time.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "worker_lib/nccl/collective_log.h"

namespace ddprun {

class DesyncDetector {
 public:
  DesyncDetector(int rank, TimePoint now)
      : rank_(rank), moved_at_(now), looked_at_(now), asked_at_(now) {}

  struct Sight {
    // The notes of all ranks; patience: see CpuGroup::notes().
    std::function<std::vector<std::optional<CallNote>>(Duration patience)> read;
    // See CollectiveLog.
    std::function<bool(std::span<const std::optional<CallNote>>)> awaits_unseen;
  };
  // To be called every few tens of milliseconds while anything is in flight. has_moved: a call has
  // come to its end since the last time, or none was in flight. How the ranks disagree, if they do.
  std::optional<std::string> look(TimePoint now, bool has_moved, const Sight& sight);

 private:
  bool asks(TimePoint now, const std::vector<std::optional<CallNote>>& notes,
            const Sight& sight) const;

  const int rank_;
  TimePoint moved_at_;   // when has_moved was last true
  TimePoint looked_at_;  // at the notes of the own node
  TimePoint asked_at_;   // for those of other nodes
  bool is_suspected_ = false;
};

}  // namespace ddprun
