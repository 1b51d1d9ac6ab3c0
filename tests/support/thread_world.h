// ThreadWorld: process groups on the cpu backend whose ranks are threads of this process. For tests
// of what stands on a ProcessGroup.
//
//   ThreadWorld world(2);
//   world.run([](ProcessGroup& group) { ...what rank group.rank() does... });
//
// A rank whose function ended is gone: ranks that wait for it get kPeerLost.
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
  class Record;
  class RecordedGroup;
  int size_;
  Timeout timeout_;
  std::shared_ptr<Record> record_;  // of the current run, or the last one
};

}  // namespace ddprun::testing_support
