// Reads the tables of docs/, for tests that compare a page with the code. Both must have exactly
// the same rows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/read_file.h"

namespace ddprun::testing_support {

using TableRow = std::vector<std::string>;

// Returns the cells of a line "| a | b |" without the spaces around them.
inline TableRow cells_of(const std::string& line) {
  TableRow cells;
  std::istringstream text(line.substr(1));
  for (std::string cell; std::getline(text, cell, '|');) {
    const std::size_t begin = cell.find_first_not_of(' ');
    cells.push_back(begin == std::string::npos
                        ? ""
                        : cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin));
  }
  return cells;
}

// Returns the rows of the table that has all these columns. Each returned row has only these
// columns. Fails the test if there is no such table or it has no rows.
inline std::vector<TableRow> table_rows(const std::string& page, const TableRow& columns) {
  std::vector<TableRow> rows;
  std::istringstream lines(read_file(DDPRUN_SOURCE_DIR "/docs/" + page));
  std::vector<std::size_t> places;  // of the columns; empty: the line is outside the table
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('|')) {
      places.clear();
      continue;
    }
    const TableRow cells = cells_of(line);
    if (!places.empty()) {
      if (line.starts_with("| ---")) continue;
      TableRow row;
      for (const std::size_t place : places) row.push_back(cells.at(place));
      rows.push_back(std::move(row));
    } else {
      for (const std::string& column : columns) {
        const auto found = std::find(cells.begin(), cells.end(), column);
        if (found != cells.end()) places.push_back(static_cast<std::size_t>(found - cells.begin()));
      }
      if (places.size() < columns.size()) places.clear();
    }
  }
  EXPECT_FALSE(rows.empty()) << "docs/" << page << " has no table of '" << columns.at(0) << "'";
  return rows;
}

}  // namespace ddprun::testing_support
