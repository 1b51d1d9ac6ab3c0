// Tests docs/how-to/troubleshooting.md: the messages that it quotes are those that the programs
// print.

#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "rendezvous/protocol/core/hints.h"
#include "tests/support/docs_table.h"
#include "tests/support/read_file.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;
using testing_support::read_file;
using testing_support::TableRow;

// Returns all string literals of the sources as one text. Adjacent literals are joined.
std::string all_words() {
  std::string words = read_file(DDPRUN_SOURCE_DIR "/tests/data/bad_inputs.golden");
  for (const char* part : {"base", "launcher", "rendezvous", "worker_lib"}) {
    for (const auto& entry :
         fs::recursive_directory_iterator(std::string(DDPRUN_SOURCE_DIR "/") + part)) {
      const fs::path& path = entry.path();
      if (path.extension() == ".cc" || path.extension() == ".h") words += read_file(path);
    }
  }
  static const std::regex seam("\"\\s*\\n\\s*\"");
  return std::regex_replace(words, seam, "");
}

// Returns the quotes in a cell, between backticks or another mark: "a `b` and `c`" gives {b, c}.
std::vector<std::string> quotes_in(const std::string& cell, char mark = '`') {
  std::vector<std::string> quotes;
  std::size_t at = cell.find(mark);
  while (at != std::string::npos) {
    const std::size_t end = cell.find(mark, at + 1);
    if (end == std::string::npos) break;
    quotes.push_back(cell.substr(at + 1, end - at - 1));
    at = cell.find(mark, end + 1);
  }
  return quotes;
}

// Splits a quote at each "...", number and signal name. Returns the pieces without spaces at
// their ends.
std::vector<std::string> pieces_of(const std::string& quote) {
  static const std::regex variable("\\.\\.\\.|\\bSIG[A-Z0-9]+|\\b[0-9.]+\\b");
  std::vector<std::string> pieces;
  const std::sregex_token_iterator end;
  for (std::sregex_token_iterator at(quote.begin(), quote.end(), variable, -1); at != end; ++at) {
    const std::string piece = *at;
    const std::size_t begin = piece.find_first_not_of(' ');
    if (begin == std::string::npos) continue;
    pieces.push_back(piece.substr(begin, piece.find_last_not_of(' ') + 1 - begin));
  }
  return pieces;
}

// Returns whether a message contains the piece, as one literal or as the end of one and the
// beginning of another.
bool is_said(const std::string& piece, const std::string& words) {
  constexpr std::size_t kLeast = 5;  // characters of the shortest part that is significant
  const auto occurs = [&](const std::string& text) {
    return words.find(text) != std::string::npos;
  };
  if (occurs(piece)) return true;
  for (std::size_t at = kLeast; at + kLeast <= piece.size(); ++at) {
    if (occurs(piece.substr(0, at)) && occurs(piece.substr(at))) return true;
  }
  return false;
}

TEST(Troubleshooting, QuotesWhatTheProgramsSay) {
  const std::string words = all_words();
  std::size_t found = 0;
  for (const TableRow& row :
       testing_support::table_rows("how-to/troubleshooting.md", {"what you see", "what to do"})) {
    for (const std::string& quote : quotes_in(row[0])) {
      for (const std::string& piece : pieces_of(quote)) {
        EXPECT_TRUE(is_said(piece, words))
            << "'" << piece << "' of `" << quote << "` is said nowhere";
        ++found;
      }
    }
  }
  EXPECT_GT(found, 100u);
}

// A line that another program prints must have a hint. This does not apply to a row that also
// quotes ddprun.
TEST(Troubleshooting, WhatOthersSayHasAHint) {
  std::size_t found = 0;
  for (const TableRow& row :
       testing_support::table_rows("how-to/troubleshooting.md", {"what you see", "what to do"})) {
    if (!quotes_in(row[0]).empty()) continue;
    for (const std::string& quote : quotes_in(row[0], '"')) {
      const WorkerEnd end{.kind = EndKind::kExited, .code = 1, .stderr_tail = {quote}};
      EXPECT_NE(hint_for(end), "") << quote;
      ++found;
    }
  }
  EXPECT_GT(found, 20u);
}

}  // namespace
}  // namespace ddprun
