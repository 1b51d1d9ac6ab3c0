// A file as text, for tests that look at one.
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

// Its first line, without the end of it. Empty where it cannot be read.
inline std::string first_line_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace ddprun::testing_support
