// The JSON form of the values that control messages and the journal have in common: fields and
// bounds of docs/wire_protocol.md. Included by codecs only, because the header of nlohmann_json
// costs seconds per unit. from_json throws Json::exception with the key that is missing, of another
// type or out of bounds. Pure functions; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// Throws, for a from_json: what is wrong with the value.
[[noreturn]] void refuse(const nlohmann::json& json, const std::string& cause);

// Of what the other side wrote, in an error.
inline constexpr std::size_t kShownBytes = 200;

// The enumerator that a word stands for.
template <class Enum, std::size_t N>
Enum value_in(const EnumNames<Enum, N>& words, const nlohmann::json& json) {
  const std::string& text = json.get_ref<const std::string&>();
  if (const std::optional<Enum> value = parse_enum(words, text)) return *value;
  refuse(json, "unknown word '" + clipped(text, kShownBytes) + "'");
}

// A field that is left out where there is no value.
template <class T>
void put(nlohmann::json& json, const char* key, const std::optional<T>& value) {
  if (value) json[key] = *value;
}
template <class T>
void take(const nlohmann::json& json, const char* key, std::optional<T>& value) {
  if (json.contains(key)) json.at(key).get_to(value.emplace());
}

// On one line. What is no UTF-8, as strangers and workers may write, is replaced.
std::string text_of(const nlohmann::json& json);

void to_json(nlohmann::json& json, const WorkerEnd& end);
void from_json(const nlohmann::json& json, WorkerEnd& end);
void to_json(nlohmann::json& json, const JobSpec& job);
void from_json(const nlohmann::json& json, JobSpec& job);
void to_json(nlohmann::json& json, const NodeSpec& node);
void from_json(const nlohmann::json& json, NodeSpec& node);
void to_json(nlohmann::json& json, const Assignment& assignment);
void from_json(const nlohmann::json& json, Assignment& assignment);
void to_json(nlohmann::json& json, const Verdict& verdict);
void from_json(const nlohmann::json& json, Verdict& verdict);

}  // namespace ddprun
