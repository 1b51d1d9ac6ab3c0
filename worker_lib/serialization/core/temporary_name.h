// temporary_name(): the name of a file until it is complete. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/concat.h"

namespace ddprun {

inline constexpr std::string_view kTemporarySuffix = ".tmp";

// Returns the name under which a file is written before it is renamed to `name`. `unique`
// (hexadecimal) distinguishes two processes that write the same file, such as a rank 0 of an
// older generation.
inline std::string temporary_name(std::string_view name, std::string_view unique) {
  return concat(name, ".", unique, kTemporarySuffix);
}

}  // namespace ddprun
