#include "launcher/top/core/printable_text.h"

#include <algorithm>

#include "base/is_control.h"
#include "base/terminal_text.h"
#include "base/utf8.h"

namespace ddprun {
namespace {

// Returns whether the byte continues a character of UTF-8.
bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string printable_text(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = character_bytes(text);
    const bool is_shown = length > 0 && !is_control(text.front()) && !is_control_of_utf8(text);
    shown += is_shown ? text.substr(0, length) : "?";
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return shown;
}

std::size_t width_of(std::string_view text) {
  return text.size() - static_cast<std::size_t>(std::ranges::count_if(text, continues));
}

std::string cut_to(std::string_view text, std::size_t width) {
  if (width_of(text) <= width) return std::string(text);
  std::size_t end = 0;
  for (std::size_t characters = 0; end < text.size(); ++end) {
    if (!continues(text[end]) && ++characters > std::max<std::size_t>(width, 1) - 1) break;
  }
  return std::string(text.substr(0, end)) + (width > 0 ? "~" : "");
}

}  // namespace ddprun
