// Decides whether people look at the console, and how it is drawn then. Pure; any thread.
#pragma once

#include <optional>
#include <string>

#include "launcher/output/core/live_screen.h"

namespace ddprun {

struct ConsoleFacts {
  std::optional<ScreenSize> out;  // size of standard output's terminal; nullopt: not a terminal
  std::optional<ScreenSize> err;
  bool one_terminal = false;   // both are the same
  std::string term;            // TERM; empty: not set
  std::string no_color;        // NO_COLOR; empty: not set
  bool has_json = false;       // --log-format json
  bool is_typed_into = false;  // --stdin, and the terminal echoes what is typed between our lines
};

struct ConsoleLook {
  bool coloured = false;  // prefixes
  bool live = false;      // rows of unfinished lines, and a status line: LiveScreen
};

// Returns the features that are on. All are off unless both streams are one terminal, TERM is
// set and not "dumb", and colours are wanted.
ConsoleLook look_of(const ConsoleFacts& facts);

}  // namespace ddprun
