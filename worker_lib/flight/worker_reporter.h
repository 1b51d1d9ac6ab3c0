// WorkerReporter: reports the progress of this worker and its calls into groups, through its page
// (base/worker_page.h). Its agent and the other ranks of its node read the page. A report takes
// some tens of nanoseconds and makes no system call. With DDPRUN_TRACE=1, and in debug builds
// without DDPRUN_TRACE=0, it also records where each call came from
// (worker_lib/flight/call_origin.h), which takes microseconds.
//
// A page belongs to the process that has opened it. The child of a fork has a copy of the
// reporter, which reports nothing.
//
// The Context, its groups and every call in flight own it. Any thread reports. The calls of one
// group begin on one thread at a time, and end on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/fork_mark.h"
#include "base/unique_fd.h"
#include "base/worker_env.h"
#include "base/worker_page.h"
#include "base/worker_page_file.h"
#include "worker_lib/flight/call_origin.h"

namespace ddprun {

// Returns "all_reduce of 4000 bytes (sum of float32) (collective 3)". A message has no number.
std::string numbered_words_of(const FlightEntry& call);

class WorkerReporter {
 public:
  // Opens the page that the agent has made for this worker. That page may be missing, of another
  // version, or not accessible (from a container, for example); then it makes a page of its own.
  // If that fails, too, nothing is reported.
  static std::shared_ptr<WorkerReporter> open(const WorkerEnv& env);
  // Makes a reporter that reports nothing.
  WorkerReporter() : WorkerReporter(std::nullopt) {}

  bool has_page() const { return mapped() != nullptr; }
  // Returns false in the child of a fork.
  bool is_of_this_process() const { return opened_by_.is_ours(); }
  // Returns where other processes that get the file find the page. Valid while the reporter
  // lives.
  PagePlace place() const;

  // total: how many steps the training has; 0 or less: what was said before stays.
  void report_step(std::int64_t step, std::int64_t total = 0);
  void report_activity();
  // Reports that the training has waited that long for a checkpoint, until now. 0 or less: nothing
  // is reported.
  void report_checkpoint(Duration time);
  // Reports that a thread was blocked that long in a call into a group.
  void report_wait(Duration time);
  // Reports that the program has reached its end, because its Context was destroyed in good
  // order; false: it continues.
  void report_finished(bool finished);
  // Mark the beginning and the end of a long wait for another rank. Such waits may be nested.
  void begin_long_wait();
  void end_long_wait();

  // Registers a group whose calls will be reported.
  // - id: the same number on all its ranks, not 0.
  // - name: for people; kFlightGroupNameBytes of it are kept.
  // - ranks: ranks of the world, in the order of the group.
  //
  // Has no effect for a known group, nor beyond kFlightGroups.
  void register_group(std::uint64_t id, std::string_view name, std::span<const int> ranks);

  // Records that a call begins, and returns its number for end_call; 0: nothing is reported. facts:
  // what is known of the call; number, end and origin are filled in, and the begin if it is 0.
  std::uint64_t begin_call(const FlightEntry& facts);
  // Records that the call ended, with or without failure. Has no effect if its record was
  // overwritten since, or if the number is 0. was_blocked: the calling thread waited from the begin
  // on, as report_wait() reports.
  void end_call(std::uint64_t number, bool failed, bool was_blocked = false);

 private:
  struct Page {
    UniqueFd file;
    std::size_t offset = 0;
    MappedPages memory;
  };
  explicit WorkerReporter(std::optional<Page> page);
  static std::optional<Page> page_of_agent(const WorkerEnv& env);
  static std::optional<Page> own_page(const WorkerEnv& env);
  WorkerPage* mapped() const;  // null: nothing is reported

  const std::optional<Page> page_;
  const ForkMark opened_by_;
  const bool traces_;  // records where calls come from
  std::mutex mutex_;   // for begin_call and register_group: several threads may use groups
  CallOrigins origins_;
};

// BlockedTime: reports its lifetime as a wait in a call. reporter: outlives it; null: not reported.
class BlockedTime {
 public:
  explicit BlockedTime(WorkerReporter* reporter)
      : reporter_(reporter), begun_(reporter ? BootClock::now() : TimePoint()) {}
  ~BlockedTime() {
    if (reporter_) reporter_->report_wait(BootClock::now() - begun_);
  }
  BlockedTime(const BlockedTime&) = delete;
  BlockedTime& operator=(const BlockedTime&) = delete;

 private:
  WorkerReporter* const reporter_;
  const TimePoint begun_;
};

// FlightTicket: a call in flight. End it once.
struct FlightTicket {
  std::shared_ptr<WorkerReporter> reporter;
  std::uint64_t number = 0;
  FlightEntry facts = {};  // describes the call, even if nothing is reported
  bool blocks = false;     // the thread that calls waits until the end

  void end(bool failed) {
    if (reporter && number != 0) reporter->end_call(number, failed, blocks);
    reporter.reset();
  }
};

}  // namespace ddprun
