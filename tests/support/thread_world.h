// ThreadWorld: process groups on the cpu backend whose ranks are threads of this process. For
// tests of code that uses a ProcessGroup.
//
//   ThreadWorld world(2);
//   world.run([](ProcessGroup& group) { ...what rank group.rank() does... });
//
// When the function of a rank has ended, the rank is gone. Ranks that wait for it get kPeerLost.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/process_group.h"
#include "tests/support/eventually.h"

namespace ddprun::testing_support {

class ThreadWorld {
 public:
  explicit ThreadWorld(int size, Timeout timeout = kPatience);
  ~ThreadWorld();

  // Runs `rank_body` once for each rank, each on its own thread, and returns when all have
  // ended. An exception of a rank fails the test.
  void run(const std::function<void(ProcessGroup&)>& rank_body);

  // As run(), but returns what() of each rank's exception; empty if it threw none.
  std::vector<std::string> errors(const std::function<void(ProcessGroup&)>& rank_body);

  // Call: a collective that the ranks have done: its name ("all_reduce") and its bytes.
  struct Call {
    std::string name;
    std::size_t bytes;
  };
  // Returns the collectives of the last run. May also be called during a run.
  std::vector<Call> calls() const;

 private:
  class Record;
  class RecordedGroup;
  int size_;
  Timeout timeout_;
  std::shared_ptr<Record> record_;  // of the current or the last run
};

}  // namespace ddprun::testing_support
