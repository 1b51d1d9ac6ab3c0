// EnumNames: a table of the words of an enumeration. Messages, files and options write and read
// the enumeration with it. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "base/assert.h"

namespace ddprun {

template <class Enum, std::size_t N>
using EnumNames = std::array<std::pair<Enum, std::string_view>, N>;

template <class Enum, std::size_t N>
constexpr std::string_view enum_name(const EnumNames<Enum, N>& words, Enum value) {
  for (const auto& [known, word] : words) {
    if (known == value) return word;
  }
  DDPRUN_ASSERT(false, "every enumerator has a word");
}

// Returns the enumerator that `text` names; nullopt: there is none.
template <class Enum, std::size_t N>
constexpr std::optional<Enum> parse_enum(const EnumNames<Enum, N>& words, std::string_view text) {
  for (const auto& [known, word] : words) {
    if (text == word) return known;
  }
  return std::nullopt;
}

}  // namespace ddprun
