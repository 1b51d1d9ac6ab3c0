#include "launcher/core/console_text.h"

#include <cstring>
#include <utility>

namespace ddprun {
namespace {

const ConsoleSource kGone;

// One pass: each line is looked through for its end and copied while it is in the cache.
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
  const bool returned = std::exchange(source.returned, end == PieceEnd::kReturn);
  const bool goes_on = open_ == &source;
  if (open_ && !goes_on) out.append("\n");
  open_ = end == PieceEnd::kLines ? nullptr : &source;
  if (returned && piece.front() == '\n') {
    // The rest of "\r\n". Where another source came between, the line has been ended for it.
    if (goes_on) out.append("\n");
    piece.remove_prefix(1);
  } else if (goes_on && !returned) {
    const std::size_t newline = piece.find('\n');
    const std::size_t length = newline == std::string_view::npos ? piece.size() : newline + 1;
    out.append(piece.substr(0, length));
    piece.remove_prefix(length);
  }
  append_lines(source.prefix, piece, out);
}

void ConsoleText::finish(ConsoleSource& source, OutputBuffer& out) {
  if (open_ != &source) return;
  // What a bar has left on the terminal is ended by whoever comes next.
  open_ = source.returned ? &kGone : nullptr;
  if (!source.returned) out.append("\n");
}

}  // namespace ddprun
