// What Python workers say when the user interrupts them, once and not eight times.
//
// After the user's SIGINT every Python worker of a node writes a traceback that ends in
// KeyboardInterrupt. The console gets the first one; of the others a line each says where it struck,
// because that is what somebody wants to know who interrupts a job that hangs. Log files and the
// tails of reports keep everything; a traceback that ends in anything else is always shown.
//
// InterruptTracebacks is the node's, TracebackFilter one worker's stderr, or its terminal. Pure; owned by the agent,
// on its one thread.
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
  static constexpr std::size_t kMaxPlaces = 8;  // that the summary names

  // The user's SIGINT is about to be passed on. Before that nothing is held back.
  void begin() { begun_ = true; }
  bool has_begun() const { return begun_; }

  // This rank has written a whole traceback that ends in KeyboardInterrupt and was at `place`:
  // whether the console gets it.
  bool take(Rank rank, const std::string& place);

  // Of those that were not shown: a line for each place, with its ranks. Empty: there were none.
  std::vector<std::string> summary() const;

 private:
  bool begun_ = false;
  bool shown_ = false;
  std::map<std::string, std::set<Rank>> hidden_;
};

class TracebackFilter {
 public:
  // What is held back at most until it is whole; a longer one is shown.
  static constexpr std::size_t kMaxHeldBytes = 256 << 10;

  // node: outlives this object.
  TracebackFilter(InterruptTracebacks& node, Rank rank) : node_(node), rank_(rank) {}

  // Whether pieces have to go through it by now.
  bool is_active() const { return node_.has_begun(); }
  // Whole lines, with their ends. Returns what is to be shown now: they, nothing, or also what was
  // held back.
  std::string feed(std::string_view piece);
  // Nothing more comes, or nobody waits for it: what is left.
  std::string finish();

 private:
  enum class State {
    kOutside,
    kHeadline,  // of a traceback that may follow: "Process SpawnProcess-1:"
    kInside,
    kEnded,  // the exception's own line was the last one; another may be chained to it
  };

  void step(std::string_view piece, std::string& out);
  void hold(std::string_view piece);
  void release(std::string& out);
  void decide(std::string& out);

  InterruptTracebacks& node_;
  const Rank rank_;
  State state_ = State::kOutside;
  std::string held_;
  std::string before_;      // what stood on the line of the first heading: a progress bar
  std::string place_;       // of the innermost frame so far
  int open_ = 0;            // a worker and its own child may write at the same time
  int others_ = 0;          // exceptions that are no KeyboardInterrupt
  bool was_other_ = false;  // the last one
};

}  // namespace ddprun
