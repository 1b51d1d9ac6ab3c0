// StderrTail: keeps the last lines of a worker's stderr for the failure report.
//
// Takes the bytes as they come. An update of a progress bar, which ends with \r, counts as a
// line, so that a bar is not one endless line. Of a large piece only the end is read. Pure; one
// owner thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

class StderrTail {
 public:
  void add(std::string_view bytes) {
    const std::size_t begin = begin_of_last_lines(bytes);
    if (begin > 0) {
      lines_.clear();
      open_.clear();
      bytes.remove_prefix(begin);
    }
    while (!bytes.empty()) {
      const std::size_t end = bytes.find_first_of("\n\r");
      extend(bytes.substr(0, end));
      if (end == std::string_view::npos) return;
      finish();
      bytes.remove_prefix(end + 1);
    }
  }
  // Ends the current line. Called at the end of the stream, too, because the last line may have
  // no end.
  void finish() {
    if (open_.empty()) return;  // empty lines are not kept
    lines_.push_back(clipped(std::move(open_), kMaxTailLineBytes));
    open_.clear();
    if (lines_.size() > kMaxTailLines) lines_.pop_front();
  }

  // Returns the lines, without their ends.
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  // Returns where the last kMaxTailLines non-empty lines begin. 0: there are no more lines than
  // that.
  static std::size_t begin_of_last_lines(std::string_view bytes) {
    std::size_t found = 0;
    for (std::size_t end = bytes.size(); end > 0;) {
      const std::size_t at = bytes.rfind('\n', end - 1);
      if (at == std::string_view::npos) return 0;
      if (end > at + 1) ++found;
      if (found > kMaxTailLines) return at + 1;
      end = at;
    }
    return 0;
  }
  // Appends to the current line, which may have no end: keeps one byte more than the limit, so
  // that clipped() knows to cut it.
  void extend(std::string_view bytes) {
    open_.append(
        bytes.substr(0, kMaxTailLineBytes + 1 - std::min(open_.size(), kMaxTailLineBytes + 1)));
  }

  std::deque<std::string> lines_;
  std::string open_;  // the line that has not ended
};

}  // namespace ddprun
