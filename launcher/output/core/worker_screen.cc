#include "launcher/output/core/worker_screen.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/is_control.h"
#include "base/terminal_text.h"

namespace ddprun {
namespace {

constexpr char kEscape = '\x1b';
constexpr std::size_t kMostColumns = 1 << 21;  // of a row: twice LineSplitter::kMaxPiece
constexpr std::size_t kMostJump = 4096;        // columns, by a cursor movement
constexpr std::size_t kMostStyles = 255;
constexpr std::size_t kMostStyleBytes = 256;
constexpr std::size_t kMostSequence = 4096;  // bytes of an escape sequence
constexpr std::size_t kTab = 8;

bool is_between(char c, char first, char last) { return c >= first && c <= last; }

// Returns the bytes of the first character. A byte that begins no character counts as one. 0:
// the character is incomplete.
std::size_t character_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  std::size_t length = 1;
  if (first >= 0xc2 && first < 0xf8) length = first < 0xe0 ? 2 : (first < 0xf0 ? 3 : 4);
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return 0;
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 1;
  }
  return length;
}

// Returns the first number of "3;4", or `otherwise` where there is none.
std::size_t number_in(std::string_view parameters, std::size_t otherwise) {
  std::size_t number = 0;
  bool is_there = false;
  for (const char c : parameters) {
    if (!is_between(c, '0', '9')) break;
    number = std::min<std::size_t>(number * 10 + static_cast<std::size_t>(c - '0'), kMostJump);
    is_there = true;
  }
  return is_there ? number : otherwise;
}

// Returns the length of a string sequence (a title, a hyperlink). It ends with BEL or ESC \, or
// without either at the end of the line. 0: it is incomplete.
std::size_t string_length(std::string_view bytes) {
  const std::size_t end = bytes.find_first_of("\a\n\x1b", 2);
  if (end == std::string_view::npos) return bytes.size() > kMostSequence ? bytes.size() : 0;
  if (bytes[end] == '\a') return end + 1;
  if (bytes[end] == '\n') return end;
  if (end + 1 == bytes.size()) return 0;
  return bytes[end + 1] == '\\' ? end + 2 : end;
}

}  // namespace

bool is_plain_line(std::string_view line) {
  for (std::size_t at = 0; at < line.size();) {
    const char c = line[at];
    if (c == kEscape) {
      const std::size_t colour = colour_length(line.substr(at));
      if (colour == 0) return false;
      at += colour;
      continue;
    }
    if ((is_control(c) && c != '\t') || is_control_of_utf8(line.substr(at))) return false;
    ++at;
  }
  return true;
}

bool WorkerScreen::Row::has_text() const {
  return std::ranges::any_of(
      cells, [](const Cell& cell) { return cell.length != 1 || cell.bytes[0] != ' '; });
}

void WorkerScreen::feed(std::string_view bytes, const Commit& commit) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::exchange(pending_, {}).append(bytes);
    bytes = joined;
  }
  while (!bytes.empty()) {
    const std::size_t length = consume(bytes, commit);
    if (length == 0) {
      pending_ = bytes;
      return;
    }
    bytes.remove_prefix(length);
  }
}

// Handles one character or escape sequence. Returns how many bytes it took. 0: it is
// incomplete.
std::size_t WorkerScreen::consume(std::string_view bytes, const Commit& commit) {
  const char first = bytes.front();
  if (first == kEscape) return escape(bytes);
  Row& row = rows_[row_];
  switch (first) {
    case '\n': line_feed(commit); return 1;
    case '\r':
      column_ = 0;
      row.has_returned = true;
      return 1;
    case '\b': column_ -= std::min<std::size_t>(column_, 1); return 1;
    case '\t': column_ = (column_ / kTab + 1) * kTab; return 1;
    default: break;
  }
  if (is_control(first)) return 1;
  const std::size_t length = character_length(bytes);
  if (length > 0 && !is_control_of_utf8(bytes)) put(bytes.substr(0, length), commit);
  return length;
}

std::size_t WorkerScreen::escape(std::string_view bytes) {
  if (bytes.size() < 2) return 0;
  const char second = bytes[1];
  if (second == ']' || second == 'P' || second == 'X' || second == '^' || second == '_') {
    return string_length(bytes);
  }
  std::size_t end = 1;
  if (second == '[') {
    end = 2;
    while (end < bytes.size() && is_between(bytes[end], ' ', '?')) ++end;
  } else {
    while (end < bytes.size() && is_between(bytes[end], ' ', '/')) ++end;
  }
  if (end == bytes.size()) return end > kMostSequence ? end : 0;
  if (!is_between(bytes[end], '0', '~')) return end;  // it is broken: drop what there is
  if (second == '[') control(bytes[end], bytes.substr(2, end - 2));
  return end + 1;
}

void WorkerScreen::control(char final, std::string_view parameters) {
  const bool is_private = !parameters.empty() && !is_between(parameters.front(), '0', ';');
  if (is_private) return;
  const std::size_t count = std::max<std::size_t>(number_in(parameters, 1), 1);
  switch (final) {
    case 'F': column_ = 0; [[fallthrough]];
    case 'A':
      climbed_ += std::min(count, row_);
      reach_ = std::max(reach_, climbed_);
      go_to_row(row_ - std::min(count, row_));
      break;
    case 'E': column_ = 0; [[fallthrough]];
    case 'B': go_to_row(std::min(row_ + count, rows_.size() - 1)); break;
    case 'C': column_ = std::min(column_ + count, std::max(column_, kMostJump)); break;
    case 'D': column_ -= std::min(count, column_); break;
    case 'G': column_ = count - 1; break;
    case 'J': erase_rows(static_cast<int>(number_in(parameters, 0))); break;
    case 'K': erase_in_line(static_cast<int>(number_in(parameters, 0))); break;
    case 'm': set_style(parameters); break;
    default: break;
  }
}

void WorkerScreen::go_to_row(std::size_t row) {
  row_ = row;
  rows_[row_].is_redrawn = true;
}

void WorkerScreen::erase_in_line(int what) {
  Row& row = rows_[row_];
  row.is_redrawn = true;
  if (what == 2) row.cells.clear();
  if (what == 0 && row.cells.size() > column_) row.cells.resize(column_);
  if (what == 1) {
    const auto end = std::min(row.cells.size(), column_ + 1);
    std::fill_n(row.cells.begin(), end, Cell{});
  }
}

void WorkerScreen::erase_rows(int what) {
  if (what == 0) erase_in_line(0);
  const std::size_t first = what == 0 ? row_ + 1 : 0;
  const std::size_t last = what == 1 ? row_ : rows_.size();
  for (std::size_t row = first; row < last; ++row) rows_[row].cells.clear();
  if (what == 1) erase_in_line(1);
}

void WorkerScreen::set_style(std::string_view parameters) {
  const bool is_reset = parameters.find_first_not_of('0') == std::string_view::npos;
  std::string style = is_reset || parameters.starts_with("0;") ? "" : styles_[style_];
  if (!is_reset) style += "\x1b[" + std::string(parameters) + "m";
  if (style.size() > kMostStyleBytes) style.clear();
  const auto known = std::ranges::find(styles_, style);
  style_ = static_cast<std::uint8_t>(known - styles_.begin());
  if (known != styles_.end()) return;
  if (styles_.size() < kMostStyles) {
    styles_.push_back(std::move(style));
  } else {
    style_ = 0;
  }
}

void WorkerScreen::put(std::string_view character, const Commit& commit) {
  if (std::exchange(rows_[row_].has_returned, false)) {
    // A bar below another one moves up after each update. This program has not moved up, so the
    // rows above are done.
    const bool is_second = std::exchange(rows_[row_].is_update, true);
    if (is_second && reach_ == 0 && row_ > 0) give_up(row_, /*with_blanks=*/true, commit);
    rows_[row_].is_redrawn = true;
  }
  climbed_ = 0;
  if (column_ >= kMostColumns) return;
  std::vector<Cell>& cells = rows_[row_].cells;
  if (cells.size() <= column_) cells.resize(column_ + 1);
  Cell& cell = cells[column_++];
  std::memcpy(cell.bytes, character.data(), character.size());
  cell.length = static_cast<std::uint8_t>(character.size());
  cell.style = style_;
}

void WorkerScreen::line_feed(const Commit& commit) {
  climbed_ = 0;
  Row& row = rows_[row_];
  row.has_returned = false;
  const bool is_kept_plain = !row.is_redrawn && (row.has_text() || rows_.size() == 1);
  const bool is_plain = is_kept_plain && !has_text_below();
  column_ = 0;
  if (++row_ == rows_.size()) rows_.emplace_back();
  if (is_plain) {
    give_up(row_, /*with_blanks=*/reach_ == 0, commit);
    reach_ = 0;
  } else if (reach_ > 0 && row_ > reach_ + 1) {
    give_up(row_ - reach_ - 1, /*with_blanks=*/false, commit);
  }
  if (rows_.size() > kMostRows) give_up(1, /*with_blanks=*/false, commit);
}

void WorkerScreen::end_row(const Commit& commit) {
  give_up(row_ + 1, /*with_blanks=*/false, commit);
  column_ = 0;
}

void WorkerScreen::finish(const Commit& commit) {
  give_up(rows_.size(), /*with_blanks=*/false, commit);
  pending_.clear();
}

void WorkerScreen::give_up(std::size_t count, bool with_blanks, const Commit& commit) {
  for (std::size_t i = 0; i < count; ++i) {
    if (with_blanks || rows_[i].has_text()) commit(text_of(rows_[i], std::string::npos));
  }
  rows_.erase(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(count));
  if (rows_.empty()) {
    rows_.emplace_back();
    column_ = 0;
  }
  row_ -= std::min(row_, count);
}

bool WorkerScreen::has_text_below() const {
  return std::any_of(rows_.begin() + static_cast<std::ptrdiff_t>(row_) + 1, rows_.end(),
                     [](const Row& row) { return row.has_text(); });
}

bool WorkerScreen::is_empty() const {
  return rows_.size() == 1 && rows_.front().cells.empty() && reach_ == 0 && column_ == 0 &&
         style_ == 0 && pending_.empty();
}

std::vector<std::string> WorkerScreen::rows(std::size_t bytes) const {
  std::vector<std::string> texts;
  for (const Row& row : rows_) {
    if (row.has_text()) texts.push_back(text_of(row, bytes));
  }
  return texts;
}

std::string WorkerScreen::text_of(const Row& row, std::size_t bytes) const {
  std::string text;
  std::uint8_t style = 0;
  for (const Cell& cell : row.cells) {
    if (text.size() >= bytes) break;
    if (cell.style != style) {
      if (style != 0) text += "\x1b[0m";
      text += styles_[cell.style];
      style = cell.style;
    }
    text.append(cell.bytes, cell.length);
  }
  return text;
}

}  // namespace ddprun
