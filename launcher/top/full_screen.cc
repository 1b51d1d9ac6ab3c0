#include "launcher/top/full_screen.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/write_all.h"
#include "launcher/process/pseudo_terminal.h"

namespace ddprun {
namespace {

// The alternate screen, without a cursor and without automatic line wrap.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr std::string_view kLeave = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";
constexpr std::string_view kHome = "\x1b[H";
constexpr std::string_view kNoStyle = "\x1b[0m";
constexpr std::string_view kEraseRow = "\x1b[K";

std::string_view code_of(TopLine::Style style) {
  switch (style) {
    case TopLine::Style::kBold: return "\x1b[1m";
    case TopLine::Style::kReverse: return "\x1b[7m";
    default: return "";
  }
}

}  // namespace

bool FullScreen::is_possible() {
  const char* term = std::getenv("TERM");
  return isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0 && term && *term &&
         std::string_view(term) != "dumb";
}

Result<void> FullScreen::take_keys() {
  if (takes_keys_) return {};
  if (tcgetattr(STDIN_FILENO, &before_) != 0) {
    return system_error("read the modes of the terminal", errno);
  }
  termios modes = before_;
  modes.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  modes.c_cc[VMIN] = 1;
  modes.c_cc[VTIME] = 0;
  if (tcsetattr(STDIN_FILENO, TCSADRAIN, &modes) != 0) {
    return system_error("set the modes of the terminal", errno);
  }
  takes_keys_ = true;
  return {};
}

Result<void> FullScreen::enter() {
  if (const Result<void> taken = take_keys(); !taken) return taken.error();
  is_entered_ = true;
  write_all(STDOUT_FILENO, kEnter);
  return {};
}

void FullScreen::leave() {
  if (std::exchange(is_entered_, false)) write_all(STDOUT_FILENO, kLeave);
  if (std::exchange(takes_keys_, false)) tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

ScreenSize FullScreen::size() const {
  return size_of_terminal(STDOUT_FILENO).value_or(ScreenSize{});
}

void FullScreen::draw(const std::vector<TopLine>& lines) const {
  std::string bytes(kHome);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) bytes += "\r\n";
    bytes += kEraseRow;  // before the text, whose last character may be at the edge
    bytes += code_of(lines[i].style);
    bytes += lines[i].text;
    bytes += kNoStyle;
  }
  write_all(STDOUT_FILENO, bytes);
}

std::string FullScreen::read() const {
  std::array<char, 256> bytes;
  const ssize_t size = ::read(STDIN_FILENO, bytes.data(), bytes.size());
  return size > 0 ? std::string(bytes.data(), static_cast<std::size_t>(size)) : "";
}

}  // namespace ddprun
