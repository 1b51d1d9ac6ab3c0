#include "rendezvous/protocol/core/code_ranges.h"

#include <algorithm>

#include "base/concat.h"
#include "base/parse_number.h"

namespace ddprun {
namespace {

Result<CodeRange> parse_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  const std::optional<int> first = parse_number<int>(text.substr(0, dash));
  const std::optional<int> last =
      dash == std::string_view::npos ? first : parse_number<int>(text.substr(dash + 1));
  if (!first || !last || *first < 1 || *last > 255 || *last < *first) {
    return invalid_value(text, "expected an exit code from 1 to 255, or a range such as 64-78");
  }
  return CodeRange{*first, *last};
}

}  // namespace

bool contains(const CodeRanges& ranges, int code) {
  return std::ranges::any_of(
      ranges, [code](const CodeRange& range) { return code >= range.first && code <= range.last; });
}

std::string to_text(const CodeRanges& ranges) {
  std::string text;
  for (const CodeRange& range : ranges) {
    text += (text.empty() ? "" : ",") + std::to_string(range.first);
    if (range.last != range.first) text += concat("-", range.last);
  }
  return text;
}

Result<CodeRanges> parse_code_ranges(std::string_view text) {
  CodeRanges ranges;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    Result<CodeRange> range = parse_range(text.substr(0, comma));
    if (!range) return std::move(range).error();
    ranges.push_back(*range);
    if (ranges.size() > kMaxCodeRanges) {
      return invalid_argument(concat("more than ", kMaxCodeRanges, " exit codes and ranges"));
    }
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
  }
  return ranges;
}

}  // namespace ddprun
