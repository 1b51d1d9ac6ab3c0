// Reads fields of JSON that another version of ddprun may have written: a field that is missing or
// has another type counts as empty. Pure; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/is_control.h"

namespace ddprun {

// Returns a text of one line, because workers or unauthenticated peers may have written it.
inline std::string text_field(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) return "";
  return in_one_line(found->get<std::string>());
}

inline std::optional<std::int64_t> integer_field(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

inline std::optional<double> number_field(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

// Returns the array, which is empty if there is none. It lives as long as `json`.
inline const nlohmann::json& list_field(const nlohmann::json& json, const char* key) {
  static const nlohmann::json kNone = nlohmann::json::array();
  const auto found = json.find(key);
  return found != json.end() && found->is_array() ? *found : kNone;
}

// Returns the object, which is empty if there is none. It lives as long as `json`.
inline const nlohmann::json& object_field(const nlohmann::json& json, const char* key) {
  static const nlohmann::json kNone = nlohmann::json::object();
  const auto found = json.find(key);
  return found != json.end() && found->is_object() ? *found : kNone;
}

}  // namespace ddprun
