// WorkerReporter: what this worker tells its agent through its page (base/worker_page.h): how far it
// is, and every call into its groups. A few nanoseconds each, no system call.
//
// Owned by the Context and by every call in flight. Any thread reports; the calls of one group begin
// on one thread at a time, and end on any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/worker_env.h"
#include "base/worker_page.h"

namespace ddprun {

class WorkerReporter {
 public:
  // Where there is no page, or one of another version, it reports to nobody.
  static std::shared_ptr<WorkerReporter> open(const WorkerEnv& env);
  // page: null: nobody.
  explicit WorkerReporter(WorkerPage* page) : page_(page) {}
  ~WorkerReporter();
  WorkerReporter(const WorkerReporter&) = delete;
  WorkerReporter& operator=(const WorkerReporter&) = delete;

  bool has_page() const { return page_ != nullptr; }

  void report_step(std::int64_t step);
  void report_activity();
  // A long wait for another rank begins and ends; such waits may lie in each other.
  void begin_long_wait();
  void end_long_wait();

  // A call begins; its number, for end_call; 0: nobody is told.
  std::uint64_t begin_call(FlightCall call, std::uint64_t collective, std::uint64_t bytes,
                           int peer);
  // It ended, well or not. No effect for a call that was overwritten since.
  void end_call(std::uint64_t number, bool failed);

 private:
  WorkerPage* page_;        // mapped
  bool is_mapped_ = false;  // by us
  std::mutex mutex_;        // of begin_call: groups may be used by several threads
};

// A call in flight, to be ended once.
struct FlightTicket {
  std::shared_ptr<WorkerReporter> reporter;
  std::uint64_t number = 0;

  void end(bool failed) {
    if (reporter && number != 0) reporter->end_call(number, failed);
    reporter.reset();
  }
};

}  // namespace ddprun
