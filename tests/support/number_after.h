// Numbers in what a program has printed.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace ddprun::testing_support {

// The number that follows the first `words`; a failure of the test, and -1, where they are missing.
inline double number_after(const std::string& text, const std::string& words) {
  const std::size_t at = text.find(words);
  if (at != std::string::npos) return std::strtod(text.c_str() + at + words.size(), nullptr);
  ADD_FAILURE() << "no '" << words << "' in:\n" << text;
  return -1;
}

}  // namespace ddprun::testing_support
