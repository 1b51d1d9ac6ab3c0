// Reads files as text.
#pragma once

#include <fstream>
#include <iterator>
#include <string>

namespace ddprun::testing_support {

// Returns the contents of the file; empty if it cannot be read.
inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Returns the first line without its line end; empty if the file cannot be read.
inline std::string first_line_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace ddprun::testing_support
