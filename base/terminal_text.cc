#include "base/terminal_text.h"

#include "base/is_control.h"

namespace ddprun {

std::size_t colour_length(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const std::size_t end = text.find_first_not_of("0123456789;:", 2);
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

bool is_control_of_utf8(std::string_view text) {
  return text.size() > 1 && text[0] == '\xc2' && static_cast<unsigned char>(text[1]) >= 0x80 &&
         static_cast<unsigned char>(text[1]) < 0xa0;
}

namespace {

// Returns the length of the escape sequence that the text begins with, as far as the text has
// it.
std::size_t escape_length(std::string_view text) {
  if (text.size() < 2) return text.size();
  if (text[1] == ']' || text[1] == 'P' || text[1] == '^' || text[1] == '_') {
    const std::size_t end = text.find_first_of("\a\n\x1b", 2);
    if (end == std::string_view::npos) return text.size();
    if (text[end] == '\a') return end + 1;
    return text.substr(end).starts_with("\x1b\\") ? end + 2 : end;
  }
  std::size_t end = text[1] == '[' ? 2 : 1;
  while (end < text.size() && text[end] >= ' ' && text[end] <= (text[1] == '[' ? '?' : '/')) ++end;
  const bool has_final = end < text.size() && !is_control(text[end]);
  return has_final ? end + 1 : end;
}

}  // namespace

std::string without_cursor_moves(std::string_view text) {
  std::string kept;
  kept.reserve(text.size());
  while (!text.empty()) {
    const char first = text.front();
    std::size_t length = 1;
    if (first == '\x1b') {
      length = colour_length(text);
      if (length > 0) kept += text.substr(0, length);
      if (length == 0) length = escape_length(text);
    } else if (is_control_of_utf8(text)) {
      length = 2;
    } else if (!is_control(first) || first == '\r' || first == '\n' || first == '\t') {
      kept += first;
    }
    text.remove_prefix(length);
  }
  return kept;
}

std::string terminal_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  bool has_colours = false;
  while (!text.empty()) {
    std::size_t length = colour_length(text);
    if (length > 0) {
      has_colours = true;
      line += text.substr(0, length);
    } else if (is_control_of_utf8(text)) {
      length = 2;
      line += '?';
    } else {
      length = 1;
      line += is_control(text.front()) && text.front() != '\t' ? '?' : text.front();
    }
    text.remove_prefix(length);
  }
  if (has_colours) line += "\x1b[0m";
  return line;
}

}  // namespace ddprun
