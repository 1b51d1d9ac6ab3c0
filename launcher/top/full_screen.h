// FullScreen: shows lines on the whole terminal and reads single keys. Afterwards the terminal is
// as it was. Main thread only.
#pragma once

#include <termios.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/process/core/screen_size.h"
#include "launcher/top/core/screen.h"

namespace ddprun {

class FullScreen {
 public:
  // Returns whether standard input and output are a terminal on which lines can be drawn.
  static bool is_possible();

  FullScreen() = default;
  ~FullScreen() { leave(); }
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  // Makes keys arrive at once, without an echo. Ctrl-C and Ctrl-Z stay signals.
  Result<void> take_keys();
  // Does the same, and turns to a screen of its own.
  Result<void> enter();
  // Restores the terminal.
  void leave();

  ScreenSize size() const;
  // Replaces what the screen shows. Only whole, printable lines.
  void draw(const std::vector<TopLine>& lines) const;
  // Returns what was typed. Empty: the terminal is gone. REQUIRES: it is readable.
  std::string read() const;

 private:
  bool is_entered_ = false;
  bool takes_keys_ = false;
  termios before_{};
};

}  // namespace ddprun
