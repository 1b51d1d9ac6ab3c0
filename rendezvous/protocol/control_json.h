// The JSON form of the values that control messages and the journal share. Fields and bounds are
// those of docs/reference/wire_protocol.md. Only codecs include this header, because that of
// nlohmann_json adds seconds to a compilation. from_json throws Json::exception, which names the
// key that is missing, of another type or out of bounds.
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
