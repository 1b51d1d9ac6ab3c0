#include "launcher/cluster/core/node_list.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/parse_number.h"
#include "base/split.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {
namespace {

constexpr std::size_t kMost = kMaxNodes;

// Splits a list at the commas outside of brackets. nullopt: brackets do not match, or are nested.
std::optional<std::vector<std::string_view>> split_list(std::string_view text) {
  std::vector<std::string_view> parts;
  bool in_bracket = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && !in_bracket)) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    } else if (text[i] == '[' || text[i] == ']') {
      if (in_bracket == (text[i] == '[')) return std::nullopt;
      in_bracket = !in_bracket;
    }
  }
  if (in_bracket) return std::nullopt;
  return parts;
}

// Returns the numbers that a text such as "1,3-5" lists. "001-003" gives 001, 002, 003. nullopt:
// the text has another form, or lists more than kMost numbers.
std::optional<std::vector<std::string>> expand_numbers(std::string_view text) {
  constexpr std::size_t kMostDigits = 18;
  std::vector<std::string> numbers;
  for (const std::string_view range : split(text, ',')) {
    const std::size_t dash = std::min(range.find('-'), range.size());
    const std::string_view low = range.substr(0, dash);
    const std::string_view high = dash == range.size() ? low : range.substr(dash + 1);
    const auto first = parse_number<std::uint64_t>(low);
    const auto last = parse_number<std::uint64_t>(high);
    if (!first || !last || low.size() > kMostDigits || high.size() > kMostDigits) {
      return std::nullopt;
    }
    if (*last < *first || *last - *first >= kMost) return std::nullopt;
    for (std::uint64_t number = *first; number <= *last; ++number) {
      std::string digits = std::to_string(number);
      if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
      numbers.push_back(std::move(digits));
    }
    if (numbers.size() > kMost) return std::nullopt;
  }
  return numbers;
}

// Returns the names that one part of a list stands for: "x[1-2]y[0-1]" gives x1y0, x1y1, x2y0,
// x2y1. nullopt: the part is empty or wrong, or gives more than kMost names. REQUIRES: its brackets
// match.
std::optional<std::vector<std::string>> expand_part(std::string_view part) {
  std::vector<std::string> names{""};
  if (part.empty()) return std::nullopt;
  while (!part.empty()) {
    // Takes the text before the next brackets, then what is in them.
    const std::size_t open = std::min(part.find('['), part.size());
    for (std::string& name : names) name += part.substr(0, open);
    part.remove_prefix(open);
    if (part.empty()) break;
    const std::size_t close = part.find(']');
    const auto numbers = expand_numbers(part.substr(1, close - 1));
    if (!numbers || numbers->size() * names.size() > kMost) return std::nullopt;
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& number : *numbers) longer.push_back(name + number);
    }
    names = std::move(longer);
    part.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

Result<std::vector<std::string>> expand_node_list(std::string_view text) {
  const auto wrong = [&] {
    return invalid_value(text, "expected names of nodes, such as node[0-3,7],gpu5");
  };
  const auto parts = split_list(text);
  if (!parts) return wrong();
  std::vector<std::string> all;
  for (const std::string_view part : *parts) {
    const auto names = expand_part(part);
    if (!names || all.size() + names->size() > kMost) return wrong();
    all.insert(all.end(), names->begin(), names->end());
  }
  return all;
}

Result<std::vector<int>> expand_counts(std::string_view text) {
  std::vector<int> counts;
  for (std::string_view part : split(text, ',')) {
    std::optional<std::size_t> times = 1;
    if (const std::size_t open = part.find("(x"); open != part.npos && part.ends_with(')')) {
      times = parse_number<std::size_t>(part.substr(open + 2, part.size() - open - 3));
      part = part.substr(0, open);
    }
    const std::optional<int> count = parse_number<int>(part);
    if (!count || *count < 1 || !times || *times < 1 || counts.size() + *times > kMost) {
      return invalid_value(text, "expected counts, such as 8(x2),4");
    }
    counts.insert(counts.end(), *times, *count);
  }
  return counts;
}

}  // namespace ddprun
