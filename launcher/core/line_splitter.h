// LineSplitter: cuts a worker's output into whole lines, so that lines of several workers never
// mix.
//
// A piece ends with \n, with \r (progress bars draw themselves that way; "\r\n" stays together), or
// at kMaxPiece bytes, so that a worker that never ends its line cannot fill our memory. What
// follows the last end is kept for the next call, or for flush() when the stream has ended. Bytes
// are bytes: nothing is decoded. Pure; one owner thread.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

namespace ddprun {

class LineSplitter {
 public:
  static constexpr std::size_t kMaxPiece = 1 << 20;

  // Calls sink(std::string_view piece) for each complete piece, its end included. Pieces are passed
  // on where they lie; only one that was begun in an earlier call is copied.
  template <class Sink>
  void feed(std::string_view bytes, Sink&& sink) {
    while (!bytes.empty()) {
      if (ends_with_return() && bytes.front() != '\n') flush(sink);
      const std::size_t room = kMaxPiece - rest_.size();
      const std::size_t length = first_piece(bytes.substr(0, room));
      const bool complete = length > 0 && (bytes[length - 1] == '\n' || length < bytes.size());
      if (!complete && bytes.size() < room) break;
      const std::size_t take = complete ? length : room;
      if (rest_.empty()) {
        sink(bytes.substr(0, take));
      } else {
        rest_.append(bytes.substr(0, take));
        flush(sink);
      }
      bytes.remove_prefix(take);
    }
    rest_.append(bytes);
  }

  // The unfinished rest, once the stream has ended.
  template <class Sink>
  void flush(Sink&& sink) {
    if (!rest_.empty()) sink(std::string_view(rest_));
    rest_.clear();
  }

 private:
  // Perhaps the first half of "\r\n".
  bool ends_with_return() const { return !rest_.empty() && rest_.back() == '\r'; }

  // Length of the first piece with its end; 0: there is no end.
  static std::size_t first_piece(std::string_view bytes) {
    const std::size_t newline = find(bytes, '\n');
    const std::size_t ret = find(bytes.substr(0, newline), '\r');
    if (ret == std::string_view::npos) return newline == std::string_view::npos ? 0 : newline + 1;
    return ret + 1 == newline ? ret + 2 : ret + 1;
  }
  static std::size_t find(std::string_view bytes, char c) {
    const void* found = bytes.empty() ? nullptr : std::memchr(bytes.data(), c, bytes.size());
    if (!found) return std::string_view::npos;
    return static_cast<std::size_t>(static_cast<const char*>(found) - bytes.data());
  }

  std::string rest_;
};

}  // namespace ddprun
