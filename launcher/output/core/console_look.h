// Whether the console is looked at by people, and what they get then. Pure; any thread.
#pragma once

#include <optional>
#include <string>

#include "launcher/output/core/live_screen.h"

namespace ddprun {

struct ConsoleFacts {
  std::optional<ScreenSize> out;  // of standard output's terminal; nullopt: it is none
  std::optional<ScreenSize> err;
  bool one_terminal = false;   // both are the same
  std::string term;            // TERM; empty: not set
  std::string no_color;        // NO_COLOR, the same
  bool has_json = false;       // --log-format json
  bool is_typed_into = false;  // --stdin, and the terminal echoes what is typed between our lines
};

struct ConsoleLook {
  bool coloured = false;  // prefixes
  bool live = false;      // rows of unfinished lines, and a status line: LiveScreen
};

// Nothing of it unless both streams are one terminal that knows what it is and colours are wanted.
ConsoleLook look_of(const ConsoleFacts& facts);

}  // namespace ddprun
