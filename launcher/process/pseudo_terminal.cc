#include "launcher/process/pseudo_terminal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>

namespace ddprun {

std::optional<ScreenSize> size_of_terminal(int descriptor) {
  if (isatty(descriptor) == 0) return std::nullopt;
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    return ScreenSize{};  // a terminal on a serial line does not know its size
  }
  return ScreenSize{.columns = size.ws_col, .rows = size.ws_row};
}

void resize_terminal(int descriptor, ScreenSize size) {
  winsize wanted{};
  wanted.ws_col = static_cast<unsigned short>(size.columns);
  wanted.ws_row = static_cast<unsigned short>(size.rows);
  ioctl(descriptor, TIOCSWINSZ, &wanted);
}

Result<PseudoTerminal> open_pseudo_terminal(ScreenSize size) {
  PseudoTerminal terminal;
  terminal.ours.reset(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!terminal.ours.valid() || grantpt(terminal.ours.get()) != 0 ||
      unlockpt(terminal.ours.get()) != 0) {
    return system_error("open a pseudo terminal", errno);
  }
  // Opens the other end by the descriptor, not by its name, which may be invisible in a
  // container.
  terminal.workers.reset(ioctl(terminal.ours.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!terminal.workers.valid()) return system_error("open a pseudo terminal's other end", errno);
  termios modes{};
  if (tcgetattr(terminal.workers.get(), &modes) != 0) {
    return system_error("read the modes of a pseudo terminal", errno);
  }
  modes.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  modes.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  if (tcsetattr(terminal.workers.get(), TCSANOW, &modes) != 0) {
    return system_error("set the modes of a pseudo terminal", errno);
  }
  resize_terminal(terminal.ours.get(), size);
  return terminal;
}

}  // namespace ddprun
