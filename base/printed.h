// printed(): makes a text as std::printf() writes it. Any thread.
#pragma once

#include <array>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace ddprun {

// Returns the text, cut at 127 bytes.
[[gnu::format(printf, 1, 2)]] inline std::string printed(const char* format, ...) {
  std::array<char, 128> text;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  return text.data();
}

}  // namespace ddprun
