// Numbers of 1 to 8 bytes, little-endian, as zip archives and pickles have them. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun {

inline std::uint64_t read_little_endian(std::string_view bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    number |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return number;
}

inline void add_little_endian(std::string& text, std::uint64_t number, std::size_t bytes) {
  char digits[8];
  for (std::size_t i = 0; i < bytes; ++i) digits[i] = static_cast<char>(number >> (8 * i));
  text.append(digits, bytes);
}

}  // namespace ddprun
