// The columns of `ddprun top`: what each shows of a rank, how ranks are compared by it, and which
// columns fit into a terminal. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/top/core/job_view.h"

namespace ddprun {

inline constexpr std::size_t kColumns = 19;

// Cells: what the columns show of one rank. Empty: not known.
using Cells = std::array<std::string, kColumns>;
Cells cells_of(const TopRow& row);

std::string_view column_name(std::size_t column);

// Compares by the column. Returns a number below 0 if `left` comes before `right`, above 0 if it
// comes after it, and 0 if they are equal. The largest numbers come first, except of ranks and
// other ids.
int compared(const TopRow& left, const TopRow& right, std::size_t column);
// Compares, as above, in the order in which `ddprun top` starts. First come ranks that do not run,
// then slow ones, then those that lag most. Of the others those come first that wait least: the
// others wait for them.
int compared_by_trouble(const TopRow& left, const TopRow& right);

// Returns whether a rank does not run, or is slow.
bool is_in_trouble(const TopRow& row);

// Column: a column that is shown, with its width in characters.
struct Column {
  std::size_t column = 0;
  std::size_t width = 0;
};
// Returns the columns that some rank has a value for and that fit into `width` characters. The
// least important ones are left out first. Long texts are cut before that.
std::vector<Column> place_columns(std::span<const Cells> rows, std::size_t width);

// Returns the line of these cells. Numbers stand at the right of their column.
std::string line_of(const Cells& cells, std::span<const Column> columns);
// Returns the line of the columns' names.
std::string header_of(std::span<const Column> columns);

}  // namespace ddprun
