// RecentOutput: the last bytes of one output stream of a local rank, for `ddprun logs`, across
// generations; and, while somebody follows it, where its bytes go as they come.
//
// It keeps what the worker has written as it is, without prefixes. What is kept is bounded, and so
// is what it costs: of a large read only the end is copied. Pure; one owner thread.
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

  // Some more of the stream.
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

  // A worker ended, or its stream did: what comes next begins a line.
  void end_line() {
    if (!kept_.empty() && kept_.back() != '\n') kept_ += '\n';
  }

  // The last `count` lines with their ends; the last one may have none. Fewer where fewer are kept.
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

  // Gets the bytes that come from now on; null: nobody.
  void follow(std::function<void(std::string_view bytes)> live) { live_ = std::move(live); }

 private:
  std::string kept_;
  bool cut_ = false;  // kept_ does not begin at the beginning of the stream
  std::function<void(std::string_view)> live_;
};

// Whole lines of a stream that comes in pieces.
class WholeLines {
 public:
  static constexpr std::size_t kLongestRest = 64 * 1024;

  // What is complete with these bytes; a line without an end is cut after kLongestRest.
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

  // The rest, when the stream has ended.
  std::string flush() { return std::exchange(rest_, {}); }

 private:
  std::string rest_;
};

}  // namespace ddprun
