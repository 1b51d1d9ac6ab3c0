// The exception in flight, for somebody in another process: its type, its words, and what a DistError
// says beside them. Without LibTorch. Any thread.
#pragma once

#include <optional>
#include <string>

#include "ddprun/error.h"

namespace ddprun {

struct ExceptionText {
  std::string type;  // as it is written in C++; empty: nothing is in flight
  std::string text;  // of a std::exception: what(), all of it; LibTorch adds its stack below
  std::optional<DistError::Kind> kind;  // of a DistError
  int peer_rank = -1;                   // of a DistError
};

// REQUIRES: a catch block, or std::terminate's handler.
ExceptionText exception_text();

// One line: "std::out_of_range: index 3 of 2".
std::string one_line_of(const ExceptionText& words);

// A mangled name as it is written in C++.
std::string demangled(const char* name);

}  // namespace ddprun
