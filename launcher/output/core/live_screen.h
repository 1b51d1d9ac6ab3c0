// LiveScreen: a terminal on which lines scroll by above an area that is drawn anew: the unfinished
// lines of workers (progress bars, prompts), a row each, and a status line at the bottom.
//
// Each take() erases the area, prints the lines that came since, and draws the area below them. The
// cursor stays at the end of the area's last row, so all that is ever needed is to go up as many rows as
// were drawn. Rows are drawn with the terminal's automatic line wrap turned off: it cuts them at its own
// edge, whatever their characters measure, and a row stays one row. What a worker does with its cursor
// stays within its own rows (WorkerScreen); of escape sequences the terminal gets colours only.
//
// Pure: what happened goes in, bytes for the terminal come out. One owner thread.
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
  // Empty: there is none.
  void set_status(std::string_view wanted);

  // A piece of the source, which stays where it is until it is finished.
  void add(const ConsoleSource& source, std::string_view piece, PieceEnd end);
  // The line of the source that has begun and not ended, as it is now; it comes again when it is whole.
  void show_rest(const ConsoleSource& source, std::string_view rest);
  // The source is gone: what stands in its row becomes a line.
  void finish(const ConsoleSource& source);

  // Takes the area away, and does not draw it until show() is called: ddprun stops, or ends.
  void hide();
  void show();

  bool has_changed() const { return changed_; }
  // How many bytes wait for take().
  std::size_t pending() const { return lines_.size(); }
  // Appends what brings the terminal up to date.
  void take(OutputBuffer& out);

 private:
  struct Area {
    WorkerScreen screen;
    std::vector<std::string> rows;  // as they are shown: also what has come of an unfinished line
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
  OutputBuffer lines_;  // whole ones, which scroll by
  std::map<const ConsoleSource*, Area, ByOrder> areas_;
  std::string status_;
  bool hidden_ = false;
  bool changed_ = false;
  std::size_t drawn_ = 0;  // rows of the area on the terminal
};

}  // namespace ddprun
