// WorkerScreen: a small model of the terminal that one stream of a worker writes to. It keeps
// the worker's cursor movements within the worker's own rows.
//
// It understands text, \r, \n, \b, \t, and colours (SGR). It understands cursor up, down, left,
// right and to a column, and erasing a line, all rows, or the rows above or below. Every other
// escape sequence and control character is dropped.
//
// A line leaves the model as soon as the worker can no longer return to it:
// - If a program never moves up, each line leaves at its \n. A line that was redrawn (a
//   progress bar) stays until it is clear that no bar is drawn below it. A plain line shows
//   that, and so does a second update without a move up in between.
// - If a program has moved up, by N rows at most so far, the N + 1 rows above its cursor stay
//   (its next bar may be one row lower). They leave when it writes a plain line below
//   everything else.
// - At most kMostRows rows stay.
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
  // Gets a line that leaves the model: text and colours, without its end.
  using Commit = std::function<void(std::string_view line)>;

  void feed(std::string_view bytes, const Commit& commit);
  // Ends the row that the cursor is in.
  void end_row(const Commit& commit);
  // Commits all rows that have text.
  void finish(const Commit& commit);

  // Returns true if the model is empty, so that the next bytes may be passed on without it.
  bool is_empty() const;
  // Returns the rows that have text, from the top: text and colours, each cut at `bytes` bytes.
  std::vector<std::string> rows(std::size_t bytes) const;

 private:
  struct Cell {
    char bytes[4] = {' ', 0, 0, 0};  // a character of UTF-8
    std::uint8_t length = 1;
    std::uint8_t style = 0;  // index into styles_
  };
  struct Row {
    std::vector<Cell> cells;
    bool is_redrawn = false;    // the cursor has returned to this row, or the row began with a \r
    bool is_update = false;     // its text was written after a \r
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
  std::size_t reach_ = 0;    // the most rows that it has moved up at once
  std::size_t climbed_ = 0;  // rows that it has moved up since it last wrote or moved down
  std::vector<std::string> styles_{""};
  std::uint8_t style_ = 0;
  std::string pending_;  // an incomplete escape sequence or character
};

// Returns whether a line holds only text, tabs and colours, so that a terminal shows it in one
// row of its own.
bool is_plain_line(std::string_view line);

}  // namespace ddprun
