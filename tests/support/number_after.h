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

// The SHA-256 that follows the first `words`, as hexadecimal digits; a failure of the test, and nothing,
// where they are missing.
inline std::string digest_after(const std::string& text, const std::string& words = "sha256 ") {
  constexpr std::size_t kDigits = 64;
  const std::size_t at = text.find(words);
  if (at != std::string::npos) return text.substr(at + words.size(), kDigits);
  ADD_FAILURE() << "no '" << words << "' in:\n" << text;
  return {};
}

}  // namespace ddprun::testing_support
