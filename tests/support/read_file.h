// Reads files as text.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <utility>

namespace ddprun::testing_support {

// Returns the contents of the file; empty if it cannot be read. A file of /proc may fail while it
// is read, because its process ends.
inline std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(text).str();
}

// Returns the first line without its line end; empty if the file cannot be read.
inline std::string first_line_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace ddprun::testing_support
