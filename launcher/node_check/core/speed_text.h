// Texts about speeds. Pure; any thread.
#pragma once

#include <string>

#include "base/concat.h"
#include "base/printed.h"

namespace ddprun {

// Returns "310 MB/s", or "1.25 MB/s" below 10 MB/s.
inline std::string speed_text(double bytes_per_s) {
  const double mb = bytes_per_s / 1e6;
  return printed(mb < 10 ? "%.2f MB/s" : "%.0f MB/s", mb);
}

// Returns "memory: 310 MB/s (limit 500 MB/s)".
inline std::string too_slow(const char* what, double value, double limit) {
  return concat(what, ": ", speed_text(value), " (limit ", speed_text(limit), ")");
}

}  // namespace ddprun
