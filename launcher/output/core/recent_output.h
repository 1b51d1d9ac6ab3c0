// RecentOutput: keeps the last bytes of one output stream of a local rank, across generations,
// for `ddprun logs`. While a reader follows the stream, new bytes are also passed on to the
// reader.
//
// The bytes are kept as the worker wrote them, without prefixes. Memory and time are bounded:
// of a large read only the end is copied. Pure; one owner thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace ddprun {

class RecentOutput {
 public:
  static constexpr std::size_t kKept = 16 * 1024;

  // Adds bytes that follow in the stream.
  void add(std::string_view bytes) {
    if (bytes.size() >= kKept) {
      kept_.assign(bytes.substr(bytes.size() - kKept));
      cut_ = true;
    } else {
      kept_ += bytes;
      if (kept_.size() > 2 * kKept) {
        kept_.erase(0, kept_.size() - kKept);
        cut_ = true;
      }
    }
    if (live_) live_(bytes);
  }

  // Ends an unfinished line. Called when a worker or its stream has ended: the next byte begins
  // a line.
  void end_line() {
    if (!kept_.empty() && kept_.back() != '\n') kept_ += '\n';
  }

  // Returns the last `count` lines with their ends, or fewer where fewer are kept. The last
  // line may have no end.
  std::string_view last_lines(std::size_t count) const {
    std::string_view text = kept_;
    if (cut_) text.remove_prefix(std::min(text.size(), text.find('\n') + 1));
    std::size_t from = text.size();
    if (from > 0 && text.back() == '\n') --from;
    for (; count > 0; --count) {
      const std::size_t end = from == 0 ? std::string_view::npos : text.rfind('\n', from - 1);
      if (end == std::string_view::npos) return text;
      from = end;
    }
    return text.substr(std::min(text.size(), from + 1));
  }

  // Sets the function that gets all bytes from now on. Null: none.
  void follow(std::function<void(std::string_view bytes)> live) { live_ = std::move(live); }

 private:
  std::string kept_;
  bool cut_ = false;  // kept_ does not begin at the beginning of the stream
  std::function<void(std::string_view)> live_;
};

// WholeLines: makes whole lines of a stream that comes in pieces.
class WholeLines {
 public:
  static constexpr std::size_t kLongestRest = 64 * 1024;

  // Returns the lines that are complete with these bytes. A line without an end is cut after
  // kLongestRest bytes.
  std::string take(std::string_view bytes) {
    const std::size_t end = bytes.find_last_of("\n\r");
    std::string lines;
    if (end != std::string_view::npos) {
      lines = std::move(rest_);
      lines += bytes.substr(0, end + 1);
      rest_.clear();
      bytes.remove_prefix(end + 1);
    }
    rest_ += bytes;
    if (rest_.size() > kLongestRest) lines += flush();
    return lines;
  }

  // Returns the unfinished line, when the stream has ended.
  std::string flush() { return std::exchange(rest_, {}); }

 private:
  std::string rest_;
};

}  // namespace ddprun
