#include "launcher/core/live_screen.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/is_control.h"

namespace ddprun {
namespace {

constexpr std::string_view kNoColours = "\x1b[0m";
constexpr std::string_view kEraseBelow = "\x1b[J";
constexpr std::string_view kWrapOff = "\x1b[?7l";
constexpr std::string_view kWrapOn = "\x1b[?7h";
// More than the widest terminal shows is not worth sending each time.
constexpr std::size_t kMostRowBytes = 2048;
constexpr std::size_t kMostRows = 8;

bool contains(std::string_view bytes, char c) {
  return !bytes.empty() && std::memchr(bytes.data(), c, bytes.size()) != nullptr;
}

// Length of the escape sequence at the beginning of the bytes: CSI ... letter; others are two bytes.
std::size_t escape_length(std::string_view bytes) {
  if (bytes.size() < 2 || bytes[1] != '[') return std::min<std::size_t>(2, bytes.size());
  std::size_t at = 2;
  while (at < bytes.size() && (bytes[at] < '@' || bytes[at] > '~')) ++at;
  return std::min(at + 1, bytes.size());
}

// What can stand in a row: text and colours.
std::string row_text(std::string_view bytes) {
  std::string text;
  bytes = bytes.substr(0, kMostRowBytes);
  while (!bytes.empty()) {
    if (bytes.front() == '\x1b') {
      const std::size_t length = escape_length(bytes);
      if (bytes[length - 1] == 'm') text.append(bytes.substr(0, length));
      bytes.remove_prefix(length);
      continue;
    }
    if (bytes.front() == '\t') text += ' ';
    if (!is_control(bytes.front())) text += bytes.front();
    bytes.remove_prefix(1);
  }
  return text;
}

}  // namespace

void LiveScreen::resize(ScreenSize size) {
  if (size == size_) return;
  size_ = size;
  changed_ = true;
}

void LiveScreen::set_status(std::string_view wanted) {
  std::string status = row_text(wanted);  // a job may have any name
  if (status == status_) return;
  status_ = std::move(status);
  changed_ = true;
}

void LiveScreen::add(const ConsoleSource& source, std::string_view piece, PieceEnd end) {
  changed_ = true;
  // It would take the prefix away.
  piece.remove_prefix(std::min(piece.find_first_not_of('\r'), piece.size()));
  if (end == PieceEnd::kReturn) {
    if (piece.ends_with('\r')) piece.remove_suffix(1);
    Row& row = rows_[&source];
    if (!piece.empty()) row.text = row_text(piece);
    row.returned = true;
    return;
  }
  if (piece.empty()) return;
  if (const auto row = rows_.find(&source); row != rows_.end()) {
    const bool is_rest_of_its_end = row->second.returned && piece.front() == '\n';
    if (is_rest_of_its_end) {
      print(source, row->second.text + "\n");
      piece.remove_prefix(1);
    }
    rows_.erase(row);
  }
  while (!piece.empty()) {
    const std::size_t newline = piece.find('\n');
    const std::size_t length = newline == std::string_view::npos ? piece.size() : newline + 1;
    print(source, piece.substr(0, length));
    piece.remove_prefix(length);
  }
}

void LiveScreen::show_rest(const ConsoleSource& source, std::string_view rest) {
  if (rest.find_first_not_of('\r') == std::string_view::npos) return;
  std::string text = row_text(rest);
  Row& row = rows_[&source];
  if (row.text == text && !row.returned) return;
  row = {std::move(text), false};
  changed_ = true;
}

void LiveScreen::finish(const ConsoleSource& source) {
  const auto row = rows_.find(&source);
  if (row == rows_.end()) return;
  if (!row->second.text.empty()) print(source, row->second.text);
  rows_.erase(row);
  changed_ = true;
}

void LiveScreen::hide() { changed_ |= !std::exchange(hidden_, true); }
void LiveScreen::show() { changed_ |= std::exchange(hidden_, false); }

// A line that is colourful, or has no end, must not go on in the next one.
void LiveScreen::print(const ConsoleSource& source, std::string_view line) {
  const bool ended = line.ends_with('\n');
  if (ended) line.remove_suffix(1);
  lines_.append(source.prefix);
  lines_.append(line);
  if (contains(line, '\x1b')) lines_.append(kNoColours);
  lines_.append("\n");
}

void LiveScreen::take(OutputBuffer& out) {
  if (!changed_) return;
  changed_ = false;
  erase_area(out);
  out.append(lines_.bytes());
  lines_.clear();
  if (!hidden_) draw_area(out);
}

void LiveScreen::erase_area(OutputBuffer& out) {
  if (drawn_ == 0) return;
  out.append("\r");
  if (drawn_ > 1) out.append("\x1b[" + std::to_string(drawn_ - 1) + "A");
  out.append(kEraseBelow);
  drawn_ = 0;
}

void LiveScreen::draw_area(OutputBuffer& out) {
  if (rows_.empty() && status_.empty()) return;
  out.append(kWrapOff);
  for (const auto& [source, row] : rows_) {
    if (drawn_ == most_rows()) break;
    if (row.text.empty()) continue;
    if (drawn_++ > 0) out.append("\r\n");
    draw_row(source->prefix, row.text, out);
  }
  if (!status_.empty()) {
    if (drawn_++ > 0) out.append("\r\n");
    // The last column stays free, so that a terminal that is made narrower by one does not break it.
    draw_row("\x1b[7m",
             std::string_view(status_).substr(
                 0, static_cast<std::size_t>(std::max(0, size_.columns - 1))),
             out);
  }
  out.append(kWrapOn);
}

void LiveScreen::draw_row(std::string_view prefix, std::string_view text, OutputBuffer& out) const {
  out.append(prefix);
  out.append(text);
  out.append(kNoColours);
}

// Half of the terminal is for what scrolls by.
std::size_t LiveScreen::most_rows() const {
  return std::clamp<std::size_t>(static_cast<std::size_t>(std::max(0, size_.rows / 2)), 1,
                                 kMostRows);
}

}  // namespace ddprun
