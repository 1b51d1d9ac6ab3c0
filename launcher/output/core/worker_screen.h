// WorkerScreen: a small model of the terminal that one stream of a worker writes to, so that its cursor
// movements stay within its own rows.
//
// It understands text, \r, \n, \b, \t, cursor up, down, left, right and to a column, erasing a line, what is
// below or all, and colours (SGR). Every other escape sequence and control character is dropped.
//
// A line leaves the model as soon as the worker can no longer come back to it:
//   - A program that never moves up gives up each line at its \n. A line that was drawn over (a progress
//     bar) stays until something shows that no bar is drawn below it: a plain line, or a second update
//     without a way up in between.
//   - A program that moves up, by N rows at most so far, keeps the N + 1 rows above its cursor (its next bar
//     may be one lower), until it writes a plain line below everything else.
//   - At most kMostRows rows are kept.
//
// Pure; one owner thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

class WorkerScreen {
 public:
  static constexpr std::size_t kMostRows = 32;
  // Gets a line that is done: text and colours, without its end.
  using Commit = std::function<void(std::string_view line)>;

  void feed(std::string_view bytes, const Commit& commit);
  // Ends the row that the cursor is in.
  void end_row(const Commit& commit);
  // Gives up all rows that have text.
  void finish(const Commit& commit);

  // Nothing is kept: what comes next may be passed on without the model.
  bool is_empty() const;
  // The rows that have text, from the top: text and colours, each cut at `bytes`.
  std::vector<std::string> rows(std::size_t bytes) const;

 private:
  struct Cell {
    char bytes[4] = {' ', 0, 0, 0};  // a character of UTF-8
    std::uint8_t length = 1;
    std::uint8_t style = 0;  // index of styles_
  };
  struct Row {
    std::vector<Cell> cells;
    bool is_redrawn = false;    // the cursor has come back to it, or it began with a \r
    bool is_update = false;     // its text was written behind a \r
    bool has_returned = false;  // by a \r, and nothing was written since
    bool has_text() const;
  };

  std::size_t consume(std::string_view bytes, const Commit& commit);
  std::size_t escape(std::string_view bytes);
  void control(char final, std::string_view parameters);
  void put(std::string_view character, const Commit& commit);
  void line_feed(const Commit& commit);
  void go_to_row(std::size_t row);
  void erase_in_line(int what);
  void erase_rows(int what);
  void set_style(std::string_view parameters);
  // Commits the first `count` rows.
  void give_up(std::size_t count, bool with_blanks, const Commit& commit);
  bool has_text_below() const;
  std::string text_of(const Row& row, std::size_t bytes) const;

  std::vector<Row> rows_{1};
  std::size_t row_ = 0;
  std::size_t column_ = 0;
  std::size_t reach_ = 0;    // so many rows it has moved up at once, at most
  std::size_t climbed_ = 0;  // so many since it last wrote or moved down
  std::vector<std::string> styles_{""};
  std::uint8_t style_ = 0;
  std::string pending_;  // an escape sequence or a character that has not come whole
};

// Whether a line holds only text, tabs and colours: a terminal shows it in its own row.
bool is_plain_line(std::string_view line);

}  // namespace ddprun
