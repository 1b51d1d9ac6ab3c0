// LiveScreen: draws a terminal on which lines scroll above an area that is redrawn. The area
// has a row for each unfinished line of a worker (progress bars, prompts), and a status line at
// the bottom.
//
// Each take() erases the area, prints the lines that came since, and draws the area below them.
// The cursor stays at the end of the area's last row. To erase the area, the cursor goes up as
// many rows as were drawn. Rows are drawn with the terminal's automatic line wrap turned off.
// The terminal then cuts them at its edge, whatever width their characters have, so that a row
// stays one row. A worker's cursor movements stay within its own rows (WorkerScreen). Of escape
// sequences the terminal gets only colours.
//
// Pure: events go in, bytes for the terminal come out. One owner thread.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/output/core/console_text.h"
#include "launcher/output/core/worker_screen.h"
#include "launcher/process/core/screen_size.h"

namespace ddprun {

class LiveScreen {
 public:
  explicit LiveScreen(ScreenSize size) : size_(size) {}

  void resize(ScreenSize size);
  // Sets the status line. Empty: there is none.
  void set_status(std::string_view wanted);

  // Adds a piece of the source. The source must stay at its address until finish().
  void add(const ConsoleSource& source, std::string_view piece, PieceEnd end);
  // Shows the unfinished line of the source as it is now. The same bytes come again in add()
  // when the line is whole.
  void show_rest(const ConsoleSource& source, std::string_view rest);
  // Turns the text of the source's rows into lines. The source writes nothing more.
  void finish(const ConsoleSource& source);

  // Removes the area, and does not draw it until show() is called. Used when ddprun is stopped
  // or ends.
  void hide();
  void show();

  bool has_changed() const { return changed_; }
  // Returns how many bytes of lines wait for take().
  std::size_t pending() const { return lines_.size(); }
  // Appends the bytes that bring the terminal up to date.
  void take(OutputBuffer& out);

 private:
  struct Area {
    WorkerScreen screen;
    std::vector<std::string> rows;  // as shown, including the text of an unfinished line
  };

  void put(const ConsoleSource& source, std::string_view piece, PieceEnd end, Area& area);
  void print(const ConsoleSource& source, std::string_view line);
  void erase_area(OutputBuffer& out);
  void draw_area(OutputBuffer& out);
  void draw_row(std::string_view prefix, std::string_view text, OutputBuffer& out) const;
  std::size_t most_rows() const;

  struct ByOrder {
    bool operator()(const ConsoleSource* left, const ConsoleSource* right) const {
      return left->order < right->order;
    }
  };

  ScreenSize size_;
  OutputBuffer lines_;  // whole lines, which scroll
  std::map<const ConsoleSource*, Area, ByOrder> areas_;
  std::string status_;
  bool hidden_ = false;
  bool changed_ = false;
  std::size_t drawn_ = 0;  // rows of the area on the terminal
};

}  // namespace ddprun
