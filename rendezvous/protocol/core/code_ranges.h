// Sets of exit codes, as --no-restart-on writes them: "2,64-78". Value types and pure functions; any
// thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun {

// Both ends included.
struct CodeRange {
  int first = 0;
  int last = 0;
  friend bool operator==(const CodeRange&, const CodeRange&) = default;
};
using CodeRanges = std::vector<CodeRange>;

inline constexpr std::size_t kMaxCodeRanges = 64;

bool contains(const CodeRanges& ranges, int code);

// "2,64-78"; empty where there is none.
std::string to_text(const CodeRanges& ranges);

// Codes are 1 to 255; an empty text is an empty set. kInvalidArgument says what would be right.
Result<CodeRanges> parse_code_ranges(std::string_view text);

}  // namespace ddprun
