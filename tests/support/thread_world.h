// ThreadWorld: process groups whose ranks are threads of this process. For tests of what stands on
// a ProcessGroup; the ProcessGroup and its cpu backend are the real ones, only the engine below is
// a few lines of its own.
//
//   ThreadWorld world(2);
//   world.run([](ProcessGroup& group) { ...what rank group.rank() does... });
//
// A rank whose function ended is gone: ranks that wait for it get kPeerLost. Ranks that call
// different collectives at the same time get kInvalidArgument.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

class ThreadWorld {
 public:
  explicit ThreadWorld(int size, Timeout timeout = std::chrono::seconds(20));
  ~ThreadWorld();

  // Runs `rank_body` once for each rank, each on a thread of its own, and returns when all have
  // ended. What they throw becomes a failure of the test.
  void run(const std::function<void(ProcessGroup&)>& rank_body);

  // The same; returns what() of each rank's exception, empty where there was none.
  std::vector<std::string> errors(const std::function<void(ProcessGroup&)>& rank_body);

  // Collectives that the ranks have done in the last run, by name ("all_reduce"), and the bytes of
  // each. Also while they run.
  struct Call {
    std::string name;
    std::size_t bytes;
  };
  std::vector<Call> calls() const;

 private:
  struct Meeting;
  class Group;
  int size_;
  Timeout timeout_;
  std::shared_ptr<Meeting> meeting_;  // of the current run, or the last one
};

}  // namespace ddprun
