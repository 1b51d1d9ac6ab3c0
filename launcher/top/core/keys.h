// Finds the keys in what a terminal sends. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

struct Key {
  enum class Kind {
    kText,
    kUp,
    kDown,
    kPageUp,
    kPageDown,
    kHome,
    kEnd,
    kEnter,
    kBackspace,
    kEscape,
    kOther
  };
  Kind kind = Kind::kOther;
  char text = 0;  // of kText: a byte of what was typed
};

// Returns the keys of these bytes. A terminal sends the bytes of one key together, so an ESC at the
// end is the key Escape.
std::vector<Key> keys_of(std::string_view bytes);

}  // namespace ddprun
