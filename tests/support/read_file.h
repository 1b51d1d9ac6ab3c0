// A whole file as text, for tests that look at one.
#pragma once

#include <fstream>
#include <iterator>
#include <string>

namespace ddprun::testing_support {

// Empty where it cannot be read.
inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace ddprun::testing_support
