// Describes the exception that is being handled for another process: its type, its text, and the
// fields of a DistError. Without LibTorch. Any thread.
#pragma once

#include <optional>
#include <string>

#include "ddprun/error.h"

namespace ddprun {

struct ExceptionText {
  std::string type;  // the C++ name; empty: there is no exception
  std::string text;  // of a std::exception: the whole of what(), to which LibTorch adds its stack
  std::optional<DistError::Kind> kind;  // of a DistError
  int peer_rank = -1;                   // of a DistError
};

// Returns the description. REQUIRES: called in a catch block, or in std::terminate's handler.
ExceptionText exception_text();

// Returns one line: "std::out_of_range: index 3 of 2".
std::string one_line_of(const ExceptionText& words);

// Returns the C++ form of a mangled name.
std::string demangled(const char* name);

}  // namespace ddprun
