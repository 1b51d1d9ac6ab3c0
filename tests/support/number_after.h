// Reads numbers in the output of a program.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace ddprun::testing_support {

// Returns the number that follows the first occurrence of `words`. If there is none, fails the
// test and returns -1.
inline double number_after(const std::string& text, const std::string& words) {
  const std::size_t at = text.find(words);
  if (at != std::string::npos) return std::strtod(text.c_str() + at + words.size(), nullptr);
  ADD_FAILURE() << "no '" << words << "' in:\n" << text;
  return -1;
}

// Returns the SHA-256, as hexadecimal digits, that follows the first occurrence of `words`. If
// there is none, fails the test and returns an empty string.
inline std::string digest_after(const std::string& text, const std::string& words = "sha256 ") {
  constexpr std::size_t kDigits = 64;
  const std::size_t at = text.find(words);
  if (at != std::string::npos) return text.substr(at + words.size(), kDigits);
  ADD_FAILURE() << "no '" << words << "' in:\n" << text;
  return {};
}

}  // namespace ddprun::testing_support
