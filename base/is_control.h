// is_control(): which characters could break the line they stand in. Pure; any thread.
#pragma once

namespace ddprun {

// Control characters of ASCII; not those of UTF-8, whose bytes are all above.
constexpr bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }

}  // namespace ddprun
