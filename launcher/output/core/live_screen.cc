#include "launcher/output/core/live_screen.h"

#include <algorithm>
#include <utility>

namespace ddprun {
namespace {

constexpr std::string_view kNoColours = "\x1b[0m";
constexpr std::string_view kEraseBelow = "\x1b[J";
constexpr std::string_view kWrapOff = "\x1b[?7l";
constexpr std::string_view kWrapOn = "\x1b[?7h";
// A row longer than this exceeds the widest terminal, so sending more is useless.
constexpr std::size_t kMostRowBytes = 2048;
constexpr std::size_t kMostRows = 8;

// Returns what can stand in a row: text and colours.
std::string row_text(std::string_view text) {
  std::string row;
  WorkerScreen screen;
  screen.feed(text.substr(0, kMostRowBytes), [&](std::string_view line) { row += line; });
  screen.finish([&](std::string_view line) { row += line; });
  return row;
}

}  // namespace

void LiveScreen::resize(ScreenSize size) {
  if (size == size_) return;
  size_ = size;
  changed_ = true;
}

void LiveScreen::set_status(std::string_view wanted) {
  std::string status = row_text(wanted);  // a job's name may hold any character
  if (status == status_) return;
  status_ = std::move(status);
  changed_ = true;
}

void LiveScreen::add(const ConsoleSource& source, std::string_view piece, PieceEnd end) {
  changed_ = true;
  Area& area = areas_[&source];
  put(source, piece, end, area);
  area.rows = area.screen.rows(kMostRowBytes);
  if (area.screen.is_empty()) areas_.erase(&source);
}

void LiveScreen::put(const ConsoleSource& source, std::string_view piece, PieceEnd end,
                     Area& area) {
  const auto commit = [&](std::string_view line) { print(source, line); };
  while (!piece.empty()) {
    const std::size_t newline = piece.find('\n');
    const bool is_line = newline != std::string_view::npos;
    const std::string_view line = piece.substr(0, newline);
    // Nearly all output consists of such lines.
    if (is_line && area.screen.is_empty() && is_plain_line(line)) {
      print(source, line);
    } else {
      area.screen.feed(piece.substr(0, is_line ? newline + 1 : newline), commit);
    }
    piece.remove_prefix(is_line ? newline + 1 : piece.size());
  }
  if (end == PieceEnd::kCut) area.screen.end_row(commit);
}

void LiveScreen::show_rest(const ConsoleSource& source, std::string_view rest) {
  if (rest.find_first_not_of('\r') == std::string_view::npos) return;
  Area& area = areas_[&source];
  std::vector<std::string> rows;
  WorkerScreen ahead = area.screen;
  ahead.feed(rest,
             [&](std::string_view line) { rows.emplace_back(line.substr(0, kMostRowBytes)); });
  for (std::string& row : ahead.rows(kMostRowBytes)) rows.push_back(std::move(row));
  if (area.rows == rows) return;
  area.rows = std::move(rows);
  changed_ = true;
}

void LiveScreen::finish(const ConsoleSource& source) {
  const auto area = areas_.find(&source);
  if (area == areas_.end()) return;
  area->second.screen.finish([&](std::string_view line) { print(source, line); });
  areas_.erase(area);
  changed_ = true;
}

void LiveScreen::hide() { changed_ |= !std::exchange(hidden_, true); }
void LiveScreen::show() { changed_ |= std::exchange(hidden_, false); }

// Prints a line and resets its colours, so that they do not continue in the next line.
void LiveScreen::print(const ConsoleSource& source, std::string_view line) {
  lines_.append(source.prefix);
  lines_.append(line);
  if (line.find('\x1b') != std::string_view::npos) lines_.append(kNoColours);
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
  if (areas_.empty() && status_.empty()) return;
  out.append(kWrapOff);
  for (const auto& [source, area] : areas_) {
    for (const std::string& row : area.rows) {
      if (drawn_ == most_rows()) break;
      if (drawn_++ > 0) out.append("\r\n");
      draw_row(source->prefix, row, out);
    }
  }
  if (!status_.empty()) {
    if (drawn_++ > 0) out.append("\r\n");
    // The last column stays free, so that the row does not wrap on a terminal that becomes one
    // column narrower.
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

// Returns how many rows the area may have. The other half of the terminal is for scrolling
// lines.
std::size_t LiveScreen::most_rows() const {
  return std::clamp<std::size_t>(static_cast<std::size_t>(std::max(0, size_.rows / 2)), 1,
                                 kMostRows);
}

}  // namespace ddprun
