#include "launcher/top/core/screen.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <utility>

#include "base/concat.h"
#include "base/counted.h"
#include "launcher/options/core/wrapped_text.h"
#include "launcher/top/core/printable_text.h"
#include "rendezvous/protocol/core/hang_analysis.h"

namespace ddprun {
namespace {

using Kind = Key::Kind;
using Style = TopLine::Style;

constexpr std::size_t kMostFilterBytes = 64;
constexpr int kLongWaitSeconds = 10;              // as on the page of the service
constexpr std::int64_t kHighestRank = 1'000'000;  // higher ones are mistakes of their senders
constexpr int kTallScreen = 20;                   // rows of a terminal that has room for long lines
constexpr std::size_t kMostRows = 4;              // of such a line; of all half the terminal's
constexpr std::size_t kIndent = 2;                // of its further rows
constexpr std::size_t kNoLimit = 100'000;         // columns of an output that is not a terminal

std::string lower(std::string_view text) {
  std::string lowered(text);
  std::ranges::transform(lowered, lowered.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lowered;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(lower(text));
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Returns whether each word is in some cell.
bool has_words(const Cells& cells, const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& cell : cells) all += lower(cell) + "\n";
  return std::ranges::all_of(
      words, [&](const std::string& word) { return all.find(word) != std::string::npos; });
}

// Returns "ranks 0,2 have waited 10 s or longer in a collective; rank 1 has not", or "" if no rank
// has waited. left_out: the ranks that are not among the rows.
std::string waits_text(const std::vector<TopRow>& rows, std::int64_t left_out) {
  std::vector<int> waiting, others;
  for (const TopRow& row : rows) {
    if (row.rank < 0 || row.rank > kHighestRank) continue;
    (row.waiting_s.value_or(0) >= kLongWaitSeconds ? waiting : others)
        .push_back(static_cast<int>(row.rank));
  }
  if (waiting.empty()) return "";
  const auto named = [](std::vector<int>& ranks, const char* has, const char* have) {
    std::ranges::sort(ranks);
    const bool is_one = ranks.size() == 1;
    return concat(is_one ? "rank " : "ranks ", rank_ranges(ranks), is_one ? has : have);
  };
  std::string text = concat(named(waiting, " has", " have"), " waited ", kLongWaitSeconds,
                            " s or longer in a collective");
  if (!others.empty()) text += "; " + named(others, " has not", " have not");
  if (left_out > 0) {
    text += concat("; ", left_out, left_out == 1 ? " rank is" : " ranks are", " not shown");
  }
  return text;
}

// Returns "rank 2 is slow: the others wait 16 % of each step", or "" if no rank is slow.
std::string slow_text(const std::vector<TopRow>& rows) {
  std::vector<int> slow;
  std::string cost;
  for (const TopRow& row : rows) {
    if (row.slow.empty() || row.rank < 0 || row.rank > kHighestRank) continue;
    slow.push_back(static_cast<int>(row.rank));
    cost = row.slow;
  }
  if (slow.empty()) return "";
  if (slow.size() == 1) return concat("rank ", slow.front(), " is slow: ", cost);
  std::ranges::sort(slow);
  return concat("ranks ", rank_ranges(slow), " are slow");
}

// Returns the text in rows of this width, `most` at most. The last one has all that is left.
std::vector<std::string> rows_of(const std::string& text, std::size_t width, std::size_t most) {
  if (most == 1) return {text};
  std::string rest = wrapped(text, kIndent, width);
  std::vector<std::string> rows;
  for (std::size_t end; rows.size() + 1 < most && (end = rest.find('\n')) != rest.npos;) {
    rows.push_back(rest.substr(0, end));
    rest.erase(0, end + 1);
  }
  std::ranges::replace(rest, '\n', ' ');
  rows.push_back(std::move(rest));
  return rows;
}

std::string number_text(const std::optional<std::int64_t>& number) {
  return std::to_string(number.value_or(0));
}

}  // namespace

void TopScreen::show(JobView view) {
  view_ = std::move(view);
  cells_.clear();
  for (const TopRow& row : view_.ranks) cells_.push_back(cells_of(row));
  arrange();
}

// Sorts and filters the ranks, and finds the selected one.
void TopScreen::arrange() {
  const std::vector<std::string> words = words_of(filter_);
  order_.clear();
  for (std::size_t i = 0; i < cells_.size(); ++i) {
    if (words.empty() || has_words(cells_[i], words)) order_.push_back(i);
  }
  std::ranges::sort(order_, [&](std::size_t left, std::size_t right) {
    const TopRow& a = view_.ranks[left];
    const TopRow& b = view_.ranks[right];
    const int order = sort_ ? compared(a, b, *sort_) : compared_by_trouble(a, b);
    if (order != 0) return is_reversed_ ? order > 0 : order < 0;
    return a.rank < b.rank;
  });
  const auto pinned = std::ranges::find_if(
      order_, [&](std::size_t i) { return pinned_ && view_.ranks[i].rank == *pinned_; });
  if (pinned != order_.end()) cursor_ = static_cast<std::size_t>(pinned - order_.begin());
  cursor_ = std::min(cursor_, std::max<std::size_t>(order_.size(), 1) - 1);
}

TopScreen::Action TopScreen::press(const Key& key) {
  using enum Key::Kind;
  using enum Action;
  if (is_typing_) {
    type(key);
    return kNone;
  }
  const auto page = static_cast<std::ptrdiff_t>(page_);
  const auto all = static_cast<std::ptrdiff_t>(order_.size());
  switch (key.kind) {
    case kUp: move(-1); return kNone;
    case kDown: move(1); return kNone;
    case kPageUp: move(-page); return kNone;
    case kPageDown: move(page); return kNone;
    case kHome: move(-all); return kNone;
    case kEnd: move(all); return kNone;
    case kEscape:
      filter_.clear();
      arrange();
      return kNone;
    case kText: break;
    default: return kNone;
  }
  const auto of_rank = [&](Action action) { return order_.empty() ? kNone : action; };
  switch (key.text) {
    case 'q': return kQuit;
    case 'k': move(-1); return kNone;
    case 'j': move(1); return kNone;
    case 'g': move(-all); return kNone;
    case 'G': move(all); return kNone;
    case 's': next_sort(); return kNone;
    case 'r':
      is_reversed_ = !is_reversed_;
      arrange();
      return kNone;
    case '/': is_typing_ = true; return kNone;
    case 'l': return of_rank(kLogs);
    case 't': return of_rank(kStacks);
    case 'f': return of_rank(kFlight);
    default: return kNone;
  }
}

void TopScreen::type(const Key& key) {
  switch (key.kind) {
    case Kind::kEnter: is_typing_ = false; return;
    case Kind::kEscape:
      is_typing_ = false;
      filter_.clear();
      break;
    case Kind::kBackspace:
      // Removes a character, which may have several bytes.
      while (!filter_.empty() && (static_cast<unsigned char>(filter_.back()) & 0xC0) == 0x80) {
        filter_.pop_back();
      }
      if (!filter_.empty()) filter_.pop_back();
      break;
    case Kind::kText:
      if (filter_.size() < kMostFilterBytes) filter_ += key.text;
      break;
    default: return;
  }
  arrange();
}

void TopScreen::move(std::ptrdiff_t rows) {
  if (order_.empty()) return;
  const auto last = static_cast<std::ptrdiff_t>(order_.size()) - 1;
  cursor_ = static_cast<std::size_t>(
      std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(cursor_) + rows, 0, last));
  pinned_ = view_.ranks[order_[cursor_]].rank;
}

// Sorts by the next column that has a value: after trouble by the first one, after the last one by
// trouble.
void TopScreen::next_sort() {
  is_reversed_ = false;
  const std::vector<Column> columns = place_columns(cells_, kNoLimit);
  const auto next = std::ranges::find_if(
      columns, [&](const Column& column) { return !sort_ || column.column > *sort_; });
  sort_ = next == columns.end() ? std::nullopt : std::optional(next->column);
  arrange();
}

std::optional<std::int64_t> TopScreen::selected() const {
  return order_.empty() ? std::nullopt : std::optional(view_.ranks[order_[cursor_]].rank);
}

// Returns the lines about the job.
std::vector<std::string> TopScreen::head() const {
  std::string first = concat("job '", view_.id, "': ", view_.phase);
  if (view_.generation) first += ", generation " + number_text(view_.generation);
  if (view_.generation_age) first += " for " + to_text(*view_.generation_age);
  if (view_.progress.step) first += " | " + progress_text(view_.progress);
  if (view_.restarts_used) {
    first += " | restarts: " + number_text(view_.restarts_used);
    if (view_.max_restarts) first += " of " + number_text(view_.max_restarts) + " used";
  }
  std::vector<std::string> lines{first};
  if (!view_.goodput.empty()) lines.push_back(view_.goodput);
  if (!view_.last_failure.empty()) lines.push_back("last failure: " + view_.last_failure);
  if (!view_.log_trouble.empty()) lines.push_back(view_.log_trouble);
  if (std::string waits = waits_text(view_.ranks, view_.ranks_left_out); !waits.empty()) {
    lines.push_back(std::move(waits));
  }
  if (std::string slow = slow_text(view_.ranks); !slow.empty()) lines.push_back(std::move(slow));
  if (!view_.outcome.empty()) lines.push_back(view_.outcome);
  if (!note_.empty()) lines.push_back(note_);
  for (std::string& line : lines) line = printable_text(line);
  return lines;
}

std::string TopScreen::order_text() const {
  std::string text = counted(cells_.size(), "rank");
  if (order_.size() != cells_.size()) text = std::to_string(order_.size()) + " of " + text;
  text += concat(" by ", sort_ ? lower(column_name(*sort_)) : "trouble");
  if (is_reversed_) text += ", reversed";
  if (view_.ranks_left_out > 0) text += concat(" | ", view_.ranks_left_out, " more do not fit");
  if (!filter_.empty()) text += " | filter: " + printable_text(filter_);
  return text;
}

std::string TopScreen::keys_text() const {
  if (is_typing_) return "/" + printable_text(filter_) + "_  (Enter: done, Esc: all ranks)";
  return "q quit  s sort  r reverse  / filter  l logs  t stacks  f flight";
}

std::vector<TopLine> TopScreen::lines(ScreenSize size) {
  using enum TopLine::Style;
  const auto width = static_cast<std::size_t>(std::max(size.columns, 1));
  const auto height = static_cast<std::size_t>(std::max(size.rows, 1));
  std::vector<TopLine> lines;
  const std::vector<std::string> heads = head();
  const std::size_t most = size.rows >= kTallScreen ? height / 2 : 0;
  std::size_t further = most - std::min(most, heads.size());
  for (const std::string& line : heads) {
    std::vector<std::string> rows = rows_of(line, width, 1 + std::min(further, kMostRows - 1));
    further -= rows.size() - 1;
    for (std::string& row : rows) lines.push_back({std::move(row)});
  }
  lines.front().style = kBold;
  lines.push_back({order_text()});
  const std::vector<Column> columns = place_columns(cells_, width);
  lines.push_back({header_of(columns), kReverse});
  // One row is for the keys.
  page_ = height > lines.size() + 1 ? height - lines.size() - 1 : 1;
  if (cursor_ < first_) first_ = cursor_;
  if (cursor_ >= first_ + page_) first_ = cursor_ + 1 - page_;
  first_ = std::min(first_, order_.size() - std::min(order_.size(), page_));
  for (std::size_t i = first_; i < std::min(order_.size(), first_ + page_); ++i) {
    const Style style = i == cursor_                            ? kReverse
                        : is_in_trouble(view_.ranks[order_[i]]) ? kBold
                                                                : kPlain;
    lines.push_back({line_of(cells_[order_[i]], columns), style});
  }
  lines.resize(height - 1);
  lines.push_back({keys_text()});
  for (TopLine& line : lines) {
    line.text = cut_to(line.text, width);
    // A reversed row reaches over the whole width.
    if (line.style == kReverse) line.text.append(width - width_of(line.text), ' ');
  }
  return lines;
}

std::string TopScreen::text() const {
  const std::vector<Column> columns = place_columns(cells_, kNoLimit);
  std::string text;
  for (const std::string& line : head()) text += line + "\n";
  text += header_of(columns) + "\n";
  for (const std::size_t i : order_) text += line_of(cells_[i], columns) + "\n";
  return text;
}

}  // namespace ddprun
