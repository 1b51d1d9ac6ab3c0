// LineSplitter: cuts a worker's output at line ends, so that lines of several workers never
// mix.
//
// A piece is one of these:
// - A run of whole lines, each ended by \n.
// - One update of a line, as progress bars draw themselves. It ends or begins with \r.
// - kMaxPiece bytes of a longer line, so that a worker that never ends its line cannot fill our
//   memory.
//
// A \r at the beginning of a line belongs to the update that it begins. Any other \r belongs to
// the text that it ends. "\r\n" is one line end, unless the \r came in an earlier call. Then
// the update before it is passed on at once, and its end is passed on alone later. The bytes
// after the last end are kept for the next call, or for flush() when the stream has ended.
// Nothing is decoded: bytes are bytes. Pure; one owner thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

enum class PieceEnd {
  kLines,   // one or more whole lines
  kReturn,  // an update: the next piece rewrites the line from its beginning
  kCut,     // the line continues, or the stream ended within it
};

class LineSplitter {
 public:
  static constexpr std::size_t kMaxPiece = 1 << 20;

  // Calls sink(std::string_view piece, PieceEnd) for each piece. Pieces are passed on without
  // copying. Only a piece that began in an earlier call is copied.
  template <class Sink>
  void feed(std::string_view bytes, Sink&& sink) {
    if (begun_ != Begun::kNothing) bytes.remove_prefix(complete_rest(bytes, sink));
    // Hardly any output has a \r. One search through all bytes is cheaper than one search per
    // line.
    while (bytes.find('\r') != std::string_view::npos) {
      const std::size_t length = end_of_first(bytes, begun_);
      if (length == std::string_view::npos) break;
      if (length > 0) sink(bytes.substr(0, length), end_of(bytes.substr(0, length)));
      bytes.remove_prefix(length);
      begun_ = Begun::kNothing;
    }
    if (const std::size_t last = bytes.rfind('\n'); last != std::string_view::npos) {
      sink(bytes.substr(0, last + 1), PieceEnd::kLines);
      bytes.remove_prefix(last + 1);
      begun_ = Begun::kNothing;
    }
    for (; bytes.size() >= kMaxPiece; bytes.remove_prefix(kMaxPiece)) {
      sink(bytes.substr(0, kMaxPiece), PieceEnd::kCut);
      begun_ = after(begun_, bytes.substr(0, kMaxPiece));
    }
    rest_.append(bytes);
    begun_ = after(begun_, bytes);
  }

  // Returns the line that has begun and not ended.
  std::string_view rest() const { return rest_; }
  // Returns whether that line belongs to an update that began with \r, and has text.
  bool rest_is_update() const { return begun_ == Begun::kUpdate && !rest_.empty(); }
  // Forgets that line, because the caller has already passed it on.
  void drop_rest() { rest_.clear(); }

  // Passes on the unfinished line, once the stream has ended.
  template <class Sink>
  void flush(Sink&& sink) {
    if (!rest_.empty()) {
      sink(std::string_view(rest_), rest_.back() == '\r' ? PieceEnd::kReturn : PieceEnd::kCut);
    }
    rest_.clear();
    begun_ = Begun::kNothing;
  }

 private:
  static constexpr std::size_t kKeepBytes = 64 * 1024;

  // What the current line has had so far, including bytes that were already passed on.
  enum class Begun {
    kNothing,
    kReturns,  // \r alone
    kUpdate,   // text after them
    kLine,     // text
  };

  // Completes the piece that was begun in an earlier call. Returns how many of `bytes` it used.
  // REQUIRES: a piece has begun.
  template <class Sink>
  std::size_t complete_rest(std::string_view bytes, Sink& sink) {
    const std::string_view fitting = bytes.substr(0, kMaxPiece - rest_.size());
    const std::size_t length = end_of_first(fitting, begun_);
    const bool ends = length != std::string_view::npos;
    const std::size_t taken = ends ? length : fitting.size();
    rest_.append(bytes.substr(0, taken));
    begun_ = ends ? Begun::kNothing : after(begun_, fitting);
    if (!ends && rest_.size() < kMaxPiece) return taken;
    if (!rest_.empty()) sink(std::string_view(rest_), ends ? end_of(rest_) : PieceEnd::kCut);
    rest_.clear();
    if (rest_.capacity() > kKeepBytes) rest_.shrink_to_fit();
    return taken;
  }

  static PieceEnd end_of(std::string_view piece) {
    return piece.back() == '\n' ? PieceEnd::kLines : PieceEnd::kReturn;
  }
  // Returns the state after `bytes`, which continue the line and hold no end.
  static Begun after(Begun begun, std::string_view bytes) {
    if (bytes.empty() || begun == Begun::kUpdate || begun == Begun::kLine) return begun;
    if (bytes.find_first_not_of('\r') == std::string_view::npos) return Begun::kReturns;
    const bool returns = begun == Begun::kReturns || bytes.front() == '\r';
    return returns ? Begun::kUpdate : Begun::kLine;
  }
  // Returns the length of the first line or update with its end. An update that began with \r
  // ends before the next \r. npos: there is no end.
  static std::size_t end_of_first(std::string_view bytes, Begun begun) {
    std::size_t text = 0;
    if (begun == Begun::kNothing || begun == Begun::kReturns) text = bytes.find_first_not_of('\r');
    if (text == std::string_view::npos) return text;
    const std::size_t newline = bytes.find('\n', text);
    const std::size_t ret = bytes.substr(0, newline).find('\r', text);
    if (ret == std::string_view::npos)
      return newline == std::string_view::npos ? newline : newline + 1;
    if (ret + 1 == newline) return ret + 2;
    const bool is_update = begun == Begun::kNothing ? text > 0 : begun != Begun::kLine;
    return is_update ? ret : ret + 1;
  }

  Begun begun_ = Begun::kNothing;
  std::string rest_;
};

}  // namespace ddprun
