// What all codecs of JSON need: rejecting a value, enumerators by their words, one line of text.
// Only codecs include this header, because that of nlohmann_json adds seconds to a compilation.
//
// Pure functions; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// Throws Json::exception with `cause`. A from_json calls it to reject a value.
[[noreturn]] void refuse(const nlohmann::json& json, const std::string& cause);

// How many bytes of the peer's text an error message shows.
inline constexpr std::size_t kShownBytes = 200;

// Returns the enumerator that the JSON string names. Throws Json::exception if there is none.
template <class Enum, std::size_t N>
Enum value_in(const EnumNames<Enum, N>& words, const nlohmann::json& json) {
  const std::string& text = json.get_ref<const std::string&>();
  if (const std::optional<Enum> value = parse_enum(words, text)) return *value;
  refuse(json, "unknown word '" + clipped(text, kShownBytes) + "'");
}

// Returns the JSON on one line. Bytes that are not UTF-8 are replaced; peers and workers may
// send some.
std::string text_of(const nlohmann::json& json);

}  // namespace ddprun
