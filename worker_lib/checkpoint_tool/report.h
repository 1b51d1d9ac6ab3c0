// The output of ddprun-ckpt, and the failures of its parts. Free functions; the one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/concat.h"
#include "base/error.h"
#include "base/exit_codes.h"

namespace ddprun {

// Thrown within this room only, when a path cannot be handled.
struct Failed {
  ExitCode code;
  std::string why;
};

// Throws, because a file cannot be read or written.
[[noreturn]] void refuse_files(std::string why);
// Throws, because a file is damaged or cannot be read.
[[noreturn]] void refuse_damaged(const std::string& path, const Error& error);
// Throws, because a file is damaged.
[[noreturn]] void refuse_damaged(const std::string& path, const std::string& why);

// Prints a line on standard output. Control characters are shown as '?'.
void print_line(std::string line);
template <class... Parts>
void print(const Parts&... line) {
  print_line(concat(line...));
}
// Prints which entries were left out, the first ones of many. Prints nothing if there are none.
void print_left_out(const std::vector<std::string>& names);
// Prints a line on standard error.
void complain(const std::string& what);

// Returns "1.5 MiB".
std::string size_text(std::uint64_t bytes);

}  // namespace ddprun
