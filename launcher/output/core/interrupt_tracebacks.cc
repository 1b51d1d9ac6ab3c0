#include "launcher/output/core/interrupt_tracebacks.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ddprun {
namespace {

constexpr std::string_view kHeading = "Traceback (most recent call last):";

// Returns a line without its end, and without the colours that Python adds on a terminal.
std::string bare(std::string_view piece) {
  std::string text;
  for (std::size_t i = 0; i < piece.size(); ++i) {
    if (piece.substr(i).starts_with("\x1b[")) {
      for (i += 2; i < piece.size() && (piece[i] < '@' || piece[i] > '~'); ++i) {
      }
    } else if (piece[i] != '\n' && piece[i] != '\r') {
      text += piece[i];
    }
  }
  return text;
}

bool is_headline(std::string_view line) {
  return (line.starts_with("Process ") && line.ends_with(":")) ||
         line.starts_with("Exception ignored in");
}

bool chains(std::string_view line) {
  return line == "During handling of the above exception, another exception occurred:" ||
         line == "The above exception was the direct cause of the following exception:";
}

bool is_interrupt(std::string_view line) {
  return line == "KeyboardInterrupt" || line.starts_with("KeyboardInterrupt:");
}

// Turns `  File "train.py", line 7, in step` into `train.py:7, in step`. Returns "" for other
// lines.
std::string place_of(std::string_view line) {
  constexpr std::string_view kFile = "  File \"";
  constexpr std::string_view kLine = "\", line ";
  const std::size_t end = line.find(kLine);
  if (!line.starts_with(kFile) || end == std::string_view::npos) return "";
  return std::string(line.substr(kFile.size(), end - kFile.size())) + ":" +
         std::string(line.substr(end + kLine.size()));
}

// Returns, for example, "0, 2-5, 7".
std::string in_ranges(const std::set<Rank>& ranks) {
  std::string text;
  for (auto rank = ranks.begin(); rank != ranks.end();) {
    auto last = rank;
    auto next = std::next(rank);
    while (next != ranks.end() && next->value == last->value + 1) last = next++;
    text += (text.empty() ? "" : ", ") + to_text(*rank);
    if (last != rank) text += (last->value == rank->value + 1 ? ", " : "-") + to_text(*last);
    rank = next;
  }
  return text;
}

}  // namespace

bool InterruptTracebacks::take(Rank rank, const std::string& place) {
  if (!shown_) return shown_ = true;
  hidden_[place].insert(rank);
  return false;
}

std::vector<std::string> InterruptTracebacks::summary() const {
  std::vector<std::string> lines;
  std::set<Rank> rest;
  for (const auto& [place, ranks] : hidden_) {
    if (lines.size() == kMaxPlaces) {
      rest.insert(ranks.begin(), ranks.end());
      continue;
    }
    lines.push_back("KeyboardInterrupt also in rank " + in_ranges(ranks) +
                    (place.empty() ? "" : " at " + place));
  }
  if (!rest.empty()) {
    lines.push_back("KeyboardInterrupt also in rank " + in_ranges(rest) + " at other places");
  }
  return lines;
}

std::string TracebackFilter::feed(std::string_view piece) {
  std::string out;
  while (!piece.empty()) {
    const std::string_view line = piece.substr(0, piece.find('\n'));
    const std::size_t size = std::min(line.size() + 1, piece.size());
    step(piece.substr(0, size), out);
    piece.remove_prefix(size);
  }
  return out;
}

std::string TracebackFilter::finish() {
  std::string out;
  if (state_ == State::kEnded) {
    decide(out);
  } else {
    release(out);
  }
  return out;
}

void TracebackFilter::step(std::string_view piece, std::string& out) {
  using enum State;
  const std::string line = bare(piece);
  const bool heading = line.ends_with(kHeading);
  switch (state_) {
    case kHeadline:
      if (heading) break;
      release(out);
      [[fallthrough]];
    case kOutside:
      if (!heading && !is_headline(line)) {
        out += piece;
        return;
      }
      break;
    case kInside:
    case kEnded:
      if (chains(line)) {
        // The exception before the chaining line does not count. The one that follows does.
        if (std::exchange(was_other_, false)) --others_;
        state_ = kInside;
        return hold(piece);
      }
      if (line.empty()) return hold(piece);
      if (state_ == kEnded) {
        decide(out);
        return step(piece, out);
      }
      if (heading) break;
      if (line.front() != ' ') {
        was_other_ = !is_interrupt(line);
        others_ += was_other_ ? 1 : 0;
        open_ = open_ > 0 ? open_ - 1 : 0;
        if (open_ == 0) state_ = kEnded;
      } else if (std::string place = place_of(line); !place.empty()) {
        place_ = std::move(place);
      }
      hold(piece);
      if (held_.size() > kMaxHeldBytes) release(out);
      return;
  }
  if (heading) {
    if (open_++ == 0 && held_.empty()) before_ = line.substr(0, line.size() - kHeading.size());
    state_ = kInside;
  } else {
    state_ = kHeadline;
  }
  hold(piece);
}

void TracebackFilter::hold(std::string_view piece) { held_ += piece; }

void TracebackFilter::release(std::string& out) {
  out += held_;
  held_.clear();
  before_.clear();
  place_.clear();
  open_ = others_ = 0;
  was_other_ = false;
  state_ = State::kOutside;
}

void TracebackFilter::decide(std::string& out) {
  if (others_ == 0 && !node_.take(rank_, place_)) {
    held_ = before_.empty() ? "" : before_ + "\n";
  }
  release(out);
}

}  // namespace ddprun
