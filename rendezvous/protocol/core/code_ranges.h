// Sets of exit codes in the notation of --no-restart-on, such as "2,64-78". Value types and pure
// functions; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun {

// Both ends are included.
struct CodeRange {
  int first = 0;
  int last = 0;
  friend bool operator==(const CodeRange&, const CodeRange&) = default;
};
using CodeRanges = std::vector<CodeRange>;

inline constexpr std::size_t kMaxCodeRanges = 64;

bool contains(const CodeRanges& ranges, int code);

// Returns the set as "2,64-78". An empty set gives an empty text.
std::string to_text(const CodeRanges& ranges);

// Parses a set of codes from 1 to 255. An empty text is an empty set. kInvalidArgument: the
// error says what would be valid.
Result<CodeRanges> parse_code_ranges(std::string_view text);

}  // namespace ddprun
