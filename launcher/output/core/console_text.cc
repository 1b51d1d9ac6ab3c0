#include "launcher/output/core/console_text.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ddprun {
namespace {

const ConsoleSource kGone;

// Appends lines with their prefix, in one pass: each line is searched for its end and copied
// while it is in the cache.
void append_lines(std::string_view prefix, std::string_view lines, OutputBuffer& out) {
  if (prefix.empty()) return out.append(lines);
  const char* at = lines.data();
  const char* const end = at + lines.size();
  while (at != end) {
    const auto left = static_cast<std::size_t>(end - at);
    const void* newline = std::memchr(at, '\n', left);
    const std::size_t length =
        newline ? static_cast<std::size_t>(static_cast<const char*>(newline) - at) + 1 : left;
    char* const to = out.extend(prefix.size() + length);
    std::memcpy(to, prefix.data(), prefix.size());
    std::memcpy(to + prefix.size(), at, length);
    at += length;
  }
}

}  // namespace

void ConsoleText::add(ConsoleSource& source, std::string_view piece, PieceEnd end,
                      OutputBuffer& out) {
  const bool returned = std::exchange(source.returned, piece.back() == '\r');
  const bool was_open = std::exchange(source.is_open, end != PieceEnd::kLines);
  const bool goes_on = open_ == &source;
  std::string_view returns = piece.substr(0, piece.find_first_not_of('\r'));
  std::string_view text = piece.substr(returns.size());
  if (was_open && !goes_on && text.starts_with('\n')) {
    // This \n ends its line, which was already ended when another source came between.
    returns = {};
    piece = text = text.substr(1);
    if (text.empty()) return;
  }
  if (open_ && !goes_on) out.append("\n");
  open_ = end == PieceEnd::kLines ? nullptr : &source;
  if (text.empty()) {
    out.append(returns);
    if (!goes_on && !source.prefix.empty()) open_ = nullptr;  // there is nothing to end
    return;
  }
  if (goes_on && (text.front() == '\n' || (returns.empty() && !returned))) {
    const std::size_t length = std::min(text.find('\n'), text.size() - 1) + 1;
    out.append(returns);
    out.append(text.substr(0, length));
    text.remove_prefix(length);
  } else if (text.front() == '\n') {
    text = piece;  // an empty line, which may end with "\r\n"
  } else {
    out.append(returns);
  }
  append_lines(source.prefix, text, out);
}

void ConsoleText::finish(ConsoleSource& source, OutputBuffer& out) {
  if (open_ != &source) return;
  // If a bar is still on the terminal, the next source ends its line.
  open_ = source.returned ? &kGone : nullptr;
  if (!source.returned) out.append("\n");
}

}  // namespace ddprun
