// WrittenFile: the name, size and SHA-256 of a file that was written. temporary_name(): its name
// until it is complete. Values and pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/concat.h"

namespace ddprun {

struct WrittenFile {
  std::string name;  // without its directory
  std::uint64_t bytes = 0;
  std::string sha256;  // 64 hexadecimal digits
  bool operator==(const WrittenFile&) const = default;
};

inline constexpr std::string_view kTemporarySuffix = ".tmp";

// Returns the name under which a file is written before it is renamed to `name`. `unique`
// (hexadecimal) distinguishes two processes that write the same file, such as a rank 0 of an
// older generation.
inline std::string temporary_name(std::string_view name, std::string_view unique) {
  return concat(name, ".", unique, kTemporarySuffix);
}

}  // namespace ddprun
