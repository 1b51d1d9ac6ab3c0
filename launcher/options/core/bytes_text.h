// Formats sizes for people. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/printed.h"

namespace ddprun {

// Returns a size as text: "16.0 MiB", or "7 bytes". unit: of less than a KiB.
inline std::string bytes_text(std::uint64_t bytes, const std::string& unit = "bytes") {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " " + unit;
  double value = static_cast<double>(bytes) / 1024;
  std::size_t i = 0;
  for (; value >= 1024 && i + 1 < kUnits.size(); ++i) value /= 1024;
  return printed("%.1f %s", value, kUnits[i]);
}

}  // namespace ddprun
