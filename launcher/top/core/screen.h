// TopScreen: the screen of `ddprun top`. It has the state of the job, one row for each rank, and
// the keys. Views of the job and keys go in; lines come out.
//
//   - Ranks are sorted by trouble (columns.h) or by a column, and filtered by words.
//   - A rank is selected. It stays selected when the order changes. Until a key has moved the
//     selection, it is the first row.
//   - While a filter is typed, keys are its text.
//
// Pure; one owner thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/process/core/screen_size.h"
#include "launcher/top/core/columns.h"
#include "launcher/top/core/job_view.h"
#include "launcher/top/core/keys.h"

namespace ddprun {

struct TopLine {
  enum class Style { kPlain, kBold, kReverse };
  std::string text;  // printable
  Style style = Style::kPlain;
};

class TopScreen {
 public:
  enum class Action { kNone, kQuit, kLogs, kStacks, kFlight };

  // Shows this view from now on.
  void show(JobView view);
  // Sets a line about the view, such as why it is old. Empty: there is none.
  void set_note(std::string note) { note_ = std::move(note); }

  // Processes a key. Returns what the caller has to do. Those of a rank concern selected().
  Action press(const Key& key);
  // Returns the selected rank; nullopt: no rank is shown.
  std::optional<std::int64_t> selected() const;

  // Returns the lines of a terminal of this size, at most one for each of its rows.
  std::vector<TopLine> lines(ScreenSize size);
  // Returns the state of the job and all ranks as text, for other outputs than a terminal.
  std::string text() const;

 private:
  void arrange();
  void type(const Key& key);
  void move(std::ptrdiff_t rows);
  void next_sort();
  std::vector<std::string> head() const;
  std::string order_text() const;
  std::string keys_text() const;

  JobView view_;
  std::vector<Cells> cells_;        // of each rank of the view
  std::vector<std::size_t> order_;  // indexes of the ranks that are shown
  std::string note_;
  std::optional<std::size_t> sort_;  // a column; nullopt: trouble
  bool is_reversed_ = false;
  std::string filter_;
  bool is_typing_ = false;
  std::optional<std::int64_t> pinned_;  // the rank that a key has selected
  std::size_t cursor_ = 0;              // the selected row: an index into order_
  std::size_t first_ = 0;               // the first row that is shown
  std::size_t page_ = 10;               // rows of ranks on the terminal
};

}  // namespace ddprun
