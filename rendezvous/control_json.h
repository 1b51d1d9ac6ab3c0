// The JSON form of the values that control messages and the journal have in common: fields and
// bounds of docs/wire_protocol.md. Included by codecs only, because the header of nlohmann_json
// costs seconds per unit. from_json throws Json::exception with the key that is missing, of another
// type or out of bounds. Pure functions; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "rendezvous/core/control_message.h"

namespace ddprun {

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
