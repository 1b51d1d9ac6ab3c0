// StderrTail: the last lines of a worker's stderr, for the report on its failure.
//
// Fed with the pieces of a LineSplitter, so that a progress bar, which draws itself with \r, does
// not count as one line. Pure; one owner thread.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/worker_end.h"

namespace ddprun {

class StderrTail {
 public:
  // One piece; its end does not count, and an empty line says nothing.
  void add(std::string_view piece) {
    while (!piece.empty() && (piece.back() == '\n' || piece.back() == '\r')) piece.remove_suffix(1);
    if (piece.empty()) return;
    // Not all of a line that may have no end is copied to be cut.
    lines_.push_back(
        clipped(std::string(piece.substr(0, kMaxTailLineBytes + 1)), kMaxTailLineBytes));
    if (lines_.size() > kMaxTailLines) lines_.pop_front();
  }

  // Without their ends.
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::deque<std::string> lines_;
};

}  // namespace ddprun
