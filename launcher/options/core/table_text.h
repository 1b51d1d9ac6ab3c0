// Aligns the columns of tables for people. Pure; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace ddprun {

// Returns one line for each row. A column is as wide as its longest cell, and columns are two
// spaces apart. Columns without text are left out. No line ends with a space.
inline std::string table_text(const std::vector<std::vector<std::string>>& rows,
                              const std::string& indent = "") {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = indent;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (widths[i] > 0) line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace ddprun
