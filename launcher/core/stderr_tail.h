// StderrTail: the last lines of a worker's stderr, for the report on its failure.
//
// Fed with the pieces of a LineSplitter, so that a progress bar, which draws itself with \r, does
// not count as one line. Pure; one owner thread.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

class StderrTail {
 public:
  static constexpr std::size_t kLines = 20;
  static constexpr std::size_t kLineBytes = 400;

  // One piece; its end does not count, and an empty line says nothing.
  void add(std::string_view piece) {
    while (!piece.empty() && (piece.back() == '\n' || piece.back() == '\r')) piece.remove_suffix(1);
    if (piece.empty()) return;
    lines_.emplace_back(piece.substr(0, kLineBytes));
    if (lines_.size() > kLines) lines_.pop_front();
  }

  // Without their ends.
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::deque<std::string> lines_;
};

}  // namespace ddprun
