// LineSplitter: cuts a worker's output at its lines' ends, so that lines of several workers never
// mix.
//
// A piece is a run of whole lines, each ended by \n; or one update of a line, ended by \r, as progress
// bars draw themselves; or, of a line that is longer than kMaxPiece bytes, as much as that, so that a
// worker that never ends its line cannot fill our memory. What follows the last end is kept for the
// next call, or for flush() when the stream has ended. "\r\n" is one end, unless the worker's two bytes
// come in two calls: an update goes out at once, and then the \n alone. Bytes are bytes: nothing is
// decoded. Pure; one owner thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

enum class PieceEnd {
  kLines,   // one or more whole lines
  kReturn,  // an update: the line begins anew
  kCut,     // the line goes on, or the stream has ended in it
};

class LineSplitter {
 public:
  static constexpr std::size_t kMaxPiece = 1 << 20;

  // Calls sink(std::string_view piece, PieceEnd) for each piece. Pieces are passed on where they lie;
  // only one that was begun in an earlier call is copied.
  template <class Sink>
  void feed(std::string_view bytes, Sink&& sink) {
    if (!rest_.empty()) bytes.remove_prefix(complete_rest(bytes, sink));
    // Hardly any output has a \r: one look at all of it is cheaper than one at each line.
    while (bytes.find('\r') != std::string_view::npos) {
      const std::size_t length = end_of_first(bytes);
      sink(bytes.substr(0, length), end_of(bytes.substr(0, length)));
      bytes.remove_prefix(length);
    }
    if (const std::size_t last = bytes.rfind('\n'); last != std::string_view::npos) {
      sink(bytes.substr(0, last + 1), PieceEnd::kLines);
      bytes.remove_prefix(last + 1);
    }
    for (; bytes.size() >= kMaxPiece; bytes.remove_prefix(kMaxPiece)) {
      sink(bytes.substr(0, kMaxPiece), PieceEnd::kCut);
    }
    rest_.append(bytes);
  }

  // The line that has begun and not ended.
  std::string_view rest() const { return rest_; }
  // It has been passed on by other means.
  void drop_rest() { rest_.clear(); }

  // Passes on the unfinished rest, once the stream has ended.
  template <class Sink>
  void flush(Sink&& sink) {
    if (!rest_.empty()) sink(std::string_view(rest_), PieceEnd::kCut);
    rest_.clear();
  }

 private:
  static constexpr std::size_t kKeepBytes = 64 * 1024;

  // REQUIRES: rest_ is not empty. How many bytes it took.
  template <class Sink>
  std::size_t complete_rest(std::string_view bytes, Sink& sink) {
    const std::string_view fitting = bytes.substr(0, kMaxPiece - rest_.size());
    const std::size_t length = end_of_first(fitting);
    const std::size_t taken = length > 0 ? length : fitting.size();
    rest_.append(bytes.substr(0, taken));
    if (length > 0) {
      sink(std::string_view(rest_), end_of(rest_));
    } else if (rest_.size() == kMaxPiece) {
      sink(std::string_view(rest_), PieceEnd::kCut);
    } else {
      return taken;
    }
    rest_.clear();
    if (rest_.capacity() > kKeepBytes) rest_.shrink_to_fit();
    return taken;
  }

  static PieceEnd end_of(std::string_view piece) {
    return piece.back() == '\n' ? PieceEnd::kLines : PieceEnd::kReturn;
  }
  // Length of the first line or update with its end; 0: there is no end.
  static std::size_t end_of_first(std::string_view bytes) {
    const std::size_t newline = bytes.find('\n');
    const std::size_t ret = bytes.substr(0, newline).find('\r');
    if (ret == std::string_view::npos) return newline == std::string_view::npos ? 0 : newline + 1;
    return ret + 1 == newline ? ret + 2 : ret + 1;
  }
  std::string rest_;
};

}  // namespace ddprun
