// Error handling of benchmarks: an error ends the program with one line. Any thread.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "base/result.h"

namespace ddprun::benchmarks {

[[noreturn]] inline void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

// Ends the program with `what` and errno unless `good`. For results of system calls.
inline void must(bool good, const char* what) {
  if (!good) give_up(std::string(what) + ": " + std::strerror(errno));
}

template <class T>
T need(Result<T> result) {
  if (!result) give_up(result.error().message());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace ddprun::benchmarks
