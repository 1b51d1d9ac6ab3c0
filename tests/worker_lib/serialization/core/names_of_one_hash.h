// names_of_one_hash(): different texts of one size that have the same std::hash of libstdc++, for
// tests of hostile files.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace ddprun {

// std::hash is MurmurHash64A with a fixed seed. It mixes each block of 8 bytes by itself, and takes
// the result in by xor and a multiplication. The mixed values of these two blocks differ in the
// highest bit only, so the second of two such blocks takes back what the first has changed.
inline std::vector<std::string> names_of_one_hash(std::size_t count) {
  const std::array<std::string, 2> blocks{"qYx(\u060d\u041c", "qY5Bssx+"};
  std::vector<std::string> names(count);
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t bits = i, left = count; left > 0; bits /= 2, left /= 2)
      names[i] += blocks[bits % 2] + blocks[bits % 2];
  return names;
}

}  // namespace ddprun
