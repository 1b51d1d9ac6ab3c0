#include "launcher/top/core/keys.h"

#include <algorithm>
#include <cstddef>

#include "base/is_control.h"

namespace ddprun {
namespace {

using Kind = Key::Kind;

// Returns the key of a control sequence, by its parameter and its last byte.
Kind kind_of(std::string_view parameter, char final) {
  using enum Key::Kind;
  switch (final) {
    case 'A': return kUp;
    case 'B': return kDown;
    case 'H': return kHome;
    case 'F': return kEnd;
    case '~':
      if (parameter == "1" || parameter == "7") return kHome;
      if (parameter == "4" || parameter == "8") return kEnd;
      if (parameter == "5") return kPageUp;
      if (parameter == "6") return kPageDown;
      return kOther;
    default: return kOther;
  }
}

Key key_of(char c) {
  switch (c) {
    case '\r':
    case '\n': return {Kind::kEnter};
    case '\b':
    case '\x7f': return {Kind::kBackspace};
    case '\x1b': return {Kind::kEscape};
    default: return is_control(c) ? Key{} : Key{Kind::kText, c};
  }
}

}  // namespace

std::vector<Key> keys_of(std::string_view bytes) {
  std::vector<Key> keys;
  while (!bytes.empty()) {
    const bool is_sequence =
        bytes.size() > 1 && bytes[0] == '\x1b' && (bytes[1] == '[' || bytes[1] == 'O');
    std::size_t length = 1;
    if (is_sequence) {
      const std::size_t final =
          std::min(bytes.find_first_not_of("0123456789;", 2), bytes.size() - 1);
      keys.push_back({kind_of(bytes.substr(2, final - 2), bytes[final])});
      length = final + 1;
    } else {
      keys.push_back(key_of(bytes.front()));
    }
    bytes.remove_prefix(length);
  }
  return keys;
}

}  // namespace ddprun
