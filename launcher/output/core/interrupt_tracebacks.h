// InterruptTracebacks, TracebackFilter: show the tracebacks of a user's interrupt once on the
// console instead of once for each worker.
//
// After the user's SIGINT every Python worker of a node writes a traceback that ends in
// KeyboardInterrupt. The console gets the first one. For the others it gets one line for each place
// where the interrupt struck. A user who interrupts a hanging job wants to know the place. Log
// files and the stderr tails of reports keep everything. A traceback that ends in another exception
// is always shown.
//
// A node has one InterruptTracebacks. Each worker's stderr, or its terminal, has one
// TracebackFilter. Pure; owned by the agent, used on its thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace ddprun {

class InterruptTracebacks {
 public:
  static constexpr std::size_t kMaxPlaces = 8;  // the most places that the summary names

  // Begins to hold back: the user's SIGINT is about to be forwarded. Before this call nothing is
  // held back.
  void begin() { begun_ = true; }
  bool has_begun() const { return begun_; }

  // Records that a rank wrote a whole traceback that ends in KeyboardInterrupt, and was at
  // `place`. Returns whether the console gets this traceback.
  bool take(Rank rank, const std::string& place);

  // Returns a line for each place of the tracebacks that were not shown, with its ranks. Empty:
  // all were shown.
  std::vector<std::string> summary() const;

 private:
  bool begun_ = false;
  bool shown_ = false;
  std::map<std::string, std::set<Rank>> hidden_;
};

class TracebackFilter {
 public:
  // The most bytes that are held back until a traceback is whole. A longer one is shown.
  static constexpr std::size_t kMaxHeldBytes = 256 << 10;

  // node: outlives this object.
  TracebackFilter(InterruptTracebacks& node, Rank rank) : node_(node), rank_(rank) {}

  // Returns whether pieces have to go through the filter by now.
  bool is_active() const { return node_.has_begun(); }
  // Takes whole lines, with their ends. Returns what is to be shown now: these lines, nothing,
  // or these lines after what was held back.
  std::string feed(std::string_view piece);
  // Returns what is still held back and should be shown. Call when the stream has ended or is
  // no longer waited for.
  std::string finish();

 private:
  enum class State {
    kOutside,
    kHeadline,  // the headline of a traceback that may follow: "Process SpawnProcess-1:"
    kInside,
    kEnded,  // the exception's own line was the last one; another traceback may be chained to it
  };

  void step(std::string_view piece, std::string& out);
  void hold(std::string_view piece);
  void release(std::string& out);
  void decide(std::string& out);

  InterruptTracebacks& node_;
  const Rank rank_;
  State state_ = State::kOutside;
  std::string held_;
  std::string before_;  // the text before the first heading, in the same line: a progress bar
  std::string place_;   // the place of the innermost frame so far
  // Tracebacks that have not ended. There may be several, because a worker and its child may
  // write at the same time.
  int open_ = 0;
  int others_ = 0;          // exceptions that are not KeyboardInterrupt
  bool was_other_ = false;  // the last exception was not KeyboardInterrupt
};

}  // namespace ddprun
