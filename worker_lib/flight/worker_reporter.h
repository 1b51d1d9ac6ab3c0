// WorkerReporter: what this worker tells its agent, and the other ranks of its node, through its
// page (base/worker_page.h): how far it is, and every call into its groups. Some tens of
// nanoseconds each, no system call. With DDPRUN_TRACE=1, and in debug builds without
// DDPRUN_TRACE=0, also from where each call came (worker_lib/flight/call_origin.h), which takes
// microseconds.
//
// A page belongs to the process that has opened it: the child of a fork, which has a copy of the
// reporter, reports to nobody.
//
// Owned by the Context and by every call in flight. Any thread reports; the calls of one group
// begin on one thread at a time, and end on any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/fork_mark.h"
#include "base/unique_fd.h"
#include "base/worker_env.h"
#include "base/worker_page.h"
#include "base/worker_page_file.h"
#include "worker_lib/flight/call_origin.h"

namespace ddprun {

// What is said of a call when it begins; what is not known stays as it is.
struct FlightFacts {
  FlightCall call = FlightCall::kNone;
  std::uint64_t group = 0;       // as in register_group(); 0: the world
  std::uint64_t collective = 0;  // the how-manyth of its group, from 1; a message: how many before
  std::uint64_t bytes = 0;       // of this rank's tensor
  FlightType dtype = FlightType::kNone;
  FlightOp op = FlightOp::kNone;
  int peer = -1;  // root, source or destination, as the world counts ranks
  int tag = 0;    // of a message
};

// "all_reduce of 4000 bytes (sum of float32) (collective 3)"; a message has no number.
std::string words_of(const FlightFacts& facts);

class WorkerReporter {
 public:
  // Into the page that an agent has made for this worker; where there is none, it is of another
  // version or cannot be opened (from a container, say), into one of its own. Where that is not to
  // be had either, to nobody.
  static std::shared_ptr<WorkerReporter> open(const WorkerEnv& env);
  // To nobody.
  WorkerReporter() : WorkerReporter(std::nullopt) {}

  bool has_page() const { return mapped() != nullptr; }
  // Not in the child of a fork.
  bool is_of_this_process() const { return opened_by_.is_ours(); }
  // Where others, who are given the file, find it; while the reporter lives.
  PagePlace place() const;

  void report_step(std::int64_t step);
  void report_activity();
  // The program has reached its end, or (false) goes on: its Context was destroyed in good order.
  void report_finished(bool finished);
  // A long wait for another rank begins and ends; such waits may lie in each other.
  void begin_long_wait();
  void end_long_wait();

  // A group whose calls will be reported: a number that all its ranks give it, not 0, its name for
  // people, of which kFlightGroupNameBytes are kept, and its ranks as the world counts them, in the
  // group's order. No effect for one that is known, nor beyond kFlightGroups.
  void register_group(std::uint64_t id, std::string_view name, std::span<const int> ranks);

  // A call begins; its number, for end_call; 0: nobody is told.
  std::uint64_t begin_call(const FlightFacts& facts);
  // It ended, well or not. No effect for a call that was overwritten since.
  void end_call(std::uint64_t number, bool failed);

 private:
  struct Page {
    UniqueFd file;
    std::size_t offset = 0;
    MappedPages memory;
  };
  explicit WorkerReporter(std::optional<Page> page);
  static std::optional<Page> page_of_agent(const WorkerEnv& env);
  static std::optional<Page> own_page(const WorkerEnv& env);
  WorkerPage* mapped() const;  // null: nobody is told

  const std::optional<Page> page_;
  const ForkMark opened_by_;
  const bool traces_;  // from where calls come
  std::mutex mutex_;             // of begin_call and register_group: several threads may use groups
  CallOrigins origins_;
};

// A call in flight, to be ended once.
struct FlightTicket {
  std::shared_ptr<WorkerReporter> reporter;
  std::uint64_t number = 0;
  FlightFacts facts = {};  // what call it is, also where nobody is told

  void end(bool failed) {
    if (reporter && number != 0) reporter->end_call(number, failed);
    reporter.reset();
  }
};

}  // namespace ddprun
