// Random identifiers from the kernel, for what must be unique across hosts. Any thread.
#pragma once

#include <string>

namespace ddprun {

// `bytes` random bytes as lower-case hex, twice as many characters.
std::string random_hex(int bytes);

}  // namespace ddprun
