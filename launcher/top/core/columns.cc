#include "launcher/top/core/columns.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/printed.h"
#include "launcher/options/core/bytes_text.h"
#include "launcher/top/core/printable_text.h"

namespace ddprun {
namespace {

constexpr std::size_t kGap = 2;           // spaces between columns
constexpr std::size_t kShortestText = 8;  // to which a text is cut before columns are left out

std::string count_text(double value) { return printed("%.0f", value); }
std::string rate_text(double value) { return printed("%.1f", value); }
std::string percent_text(double value) { return printed("%.0f", value); }
std::string seconds_text(double value) { return printed("%.1f s", value); }
std::string size_text(double value) {
  return bytes_text(value > 0 ? static_cast<std::uint64_t>(std::min(value, 1e18)) : 0, "B");
}

template <auto Member>
std::optional<double> number(const TopRow& row) {
  const auto& value = row.*Member;
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}
std::optional<double> rank_of(const TopRow& row) { return static_cast<double>(row.rank); }

// ColumnSpec: either a number or a text of a rank.
struct ColumnSpec {
  std::string_view name;
  int importance;  // the columns with the lowest ones are left out first
  std::optional<double> (*number)(const TopRow&) = nullptr;
  std::string (*shown)(double) = nullptr;
  std::string TopRow::*text = nullptr;
  std::size_t most = 12;  // characters
  bool is_id = false;
};

// From left to right.
constexpr std::array<ColumnSpec, kColumns> kTable{{
    {.name = "RANK", .importance = 19, .number = rank_of, .shown = count_text, .is_id = true},
    {.name = "NODE",
     .importance = 3,
     .number = number<&TopRow::node>,
     .shown = count_text,
     .is_id = true},
    {.name = "HOST", .importance = 10, .text = &TopRow::host, .most = 24},
    {.name = "LOCAL",
     .importance = 1,
     .number = number<&TopRow::local_rank>,
     .shown = count_text,
     .is_id = true},
    {.name = "PID",
     .importance = 2,
     .number = number<&TopRow::pid>,
     .shown = count_text,
     .is_id = true},
    {.name = "STATE", .importance = 18, .text = &TopRow::state, .most = 32},
    {.name = "STEP", .importance = 17, .number = number<&TopRow::step>, .shown = count_text},
    {.name = "STEPS/S",
     .importance = 11,
     .number = number<&TopRow::steps_per_second>,
     .shown = rate_text},
    {.name = "LAG", .importance = 16, .number = number<&TopRow::lag>, .shown = count_text},
    {.name = "WAITS",
     .importance = 15,
     .number = number<&TopRow::waiting_s>,
     .shown = seconds_text},
    {.name = "COLLECTIVE", .importance = 13, .text = &TopRow::collective, .most = 28},
    {.name = "CPU%",
     .importance = 9,
     .number = number<&TopRow::cpu_percent>,
     .shown = percent_text},
    {.name = "MEMORY",
     .importance = 7,
     .number = number<&TopRow::memory_bytes>,
     .shown = size_text},
    {.name = "GPU%",
     .importance = 8,
     .number = number<&TopRow::gpu_percent>,
     .shown = percent_text},
    {.name = "GPU-MEM",
     .importance = 5,
     .number = number<&TopRow::gpu_memory_bytes>,
     .shown = size_text},
    {.name = "GPU-OWN",
     .importance = 6,
     .number = number<&TopRow::gpu_own_memory_bytes>,
     .shown = size_text},
    {.name = "RESTARTS", .importance = 4, .number = number<&TopRow::restarts>, .shown = count_text},
    {.name = "LIMITS", .importance = 12, .text = &TopRow::limits, .most = 64},
    {.name = "SLOW", .importance = 14, .text = &TopRow::slow, .most = 80},
}};

int sign(double difference) { return difference < 0 ? -1 : difference > 0 ? 1 : 0; }

// Compares numbers: the larger one first, then those without a value.
int larger_first(const std::optional<double>& left, const std::optional<double>& right) {
  if (!left || !right) return static_cast<int>(!left) - static_cast<int>(!right);
  return sign(*right - *left);
}

bool runs(const TopRow& row) { return row.state == "running" || row.state.empty(); }

}  // namespace

Cells cells_of(const TopRow& row) {
  Cells cells;
  for (std::size_t i = 0; i < kColumns; ++i) {
    const ColumnSpec& spec = kTable[i];
    if (spec.text) {
      cells[i] = printable_text(row.*spec.text);
    } else if (const std::optional<double> value = spec.number(row)) {
      cells[i] = spec.shown(*value);
    }
  }
  return cells;
}

std::string_view column_name(std::size_t column) { return kTable[column].name; }

int compared(const TopRow& left, const TopRow& right, std::size_t column) {
  const ColumnSpec& spec = kTable[column];
  if (spec.text) return (left.*spec.text).compare(right.*spec.text);
  const std::optional<double> a = spec.number(left);
  const std::optional<double> b = spec.number(right);
  return spec.is_id && a && b ? larger_first(b, a) : larger_first(a, b);
}

int compared_by_trouble(const TopRow& left, const TopRow& right) {
  if (runs(left) != runs(right)) return runs(left) ? 1 : -1;
  if (left.slow.empty() != right.slow.empty()) return left.slow.empty() ? 1 : -1;
  const auto lag = [](const TopRow& row) { return row.lag.value_or(0); };
  if (lag(left) != lag(right)) return lag(left) > lag(right) ? -1 : 1;
  return sign(left.waiting_s.value_or(0) - right.waiting_s.value_or(0));
}

bool is_in_trouble(const TopRow& row) { return !runs(row) || !row.slow.empty(); }

std::vector<Column> place_columns(std::span<const Cells> rows, std::size_t width) {
  std::vector<Column> columns;
  for (std::size_t i = 0; i < kColumns; ++i) {
    std::size_t longest = 0;
    for (const Cells& cells : rows) longest = std::max(longest, width_of(cells[i]));
    longest = std::min(longest, kTable[i].most);
    if (longest > 0) columns.push_back({i, std::max(longest, kTable[i].name.size())});
  }
  const auto total = [&] {
    std::size_t sum = 0;
    for (const Column& column : columns) sum += column.width + kGap;
    return sum > 0 ? sum - kGap : 0;
  };
  const auto shortest = [](const Column& column) {
    const ColumnSpec& spec = kTable[column.column];
    return std::min(column.width,
                    spec.text ? std::max(kShortestText, spec.name.size()) : column.width);
  };
  // Cuts the widest text by one character, until all fits or no text can be cut.
  const auto cut_a_text = [&] {
    Column* widest = nullptr;
    for (Column& column : columns) {
      if (column.width > shortest(column) && (!widest || column.width > widest->width)) {
        widest = &column;
      }
    }
    if (widest) --widest->width;
    return widest != nullptr;
  };
  const std::vector<Column> natural = columns;
  while (total() > width && cut_a_text()) {
  }
  const auto importance = [](const Column& column) { return kTable[column.column].importance; };
  while (total() > width && columns.size() > 1) {
    columns.erase(std::ranges::min_element(columns, {}, importance));
  }
  // Texts get what the columns that were left out have freed.
  for (Column& column : columns) {
    const auto wanted = std::ranges::find(natural, column.column, &Column::column);
    const std::size_t spare = width - std::min(width, total());
    column.width += std::min(spare, wanted->width - column.width);
  }
  return columns;
}

namespace {

template <class CellOf>
std::string joined_cells(std::span<const Column> columns, const CellOf& cell_of) {
  std::string line;
  for (const Column& column : columns) {
    const std::string cell = cut_to(cell_of(column.column), column.width);
    const std::string blanks(column.width - width_of(cell), ' ');
    if (!line.empty()) line.append(kGap, ' ');
    line += kTable[column.column].text ? cell + blanks : blanks + cell;
  }
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

}  // namespace

std::string line_of(const Cells& cells, std::span<const Column> columns) {
  return joined_cells(columns, [&](std::size_t i) -> std::string_view { return cells[i]; });
}

std::string header_of(std::span<const Column> columns) {
  return joined_cells(columns, column_name);
}

}  // namespace ddprun
