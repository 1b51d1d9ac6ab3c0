#include "rendezvous/persistence/state_codec.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/seconds.h"
#include "rendezvous/protocol/control_json.h"

namespace ddprun {

using Json = nlohmann::json;

namespace {

constexpr int kVersion = 1;
constexpr std::string_view kServiceKey = "service";
constexpr std::string_view kJobKey = "job/";

Json json_of(const JobRecord& record) {
  const JobState& state = record.state;
  Json json = {{"version", kVersion},
               {"instance", record.instance},
               {"former_instance", record.former_instance},
               {"spec", state.spec},
               {"phase", enum_name(kJobPhaseWords, state.phase)},
               {"generation", state.generation.value},
               {"restarts_used", state.restarts_used},
               {"restart_ages_ms", Json::array()},
               {"reason", state.reason},
               {"failed", state.failed},
               {"ends", state.ends},
               {"missing", state.missing},
               {"node_failures", state.node_failures},
               {"places", Json::array()}};
  for (const Duration age : state.restart_ages) json["restart_ages_ms"].push_back(to_ms(age));
  if (state.strikes != Strikes()) {
    json["strikes"] = {{"in_a_row", state.strikes.in_a_row}, {"restarts", state.strikes.restarts}};
    put(json["strikes"], "step", state.strikes.step);
  }
  put(json, "ending", state.ending);
  put(json, "verdict", state.verdict);
  if (record.end_number > 0) json["end_number"] = record.end_number;
  if (record.owner) json["owner"] = record.owner->value;
  // All places have the same reason, which may be long, so it is written once.
  if (!state.places.empty()) json["placed_for"] = state.places.front().assignment.reason;
  for (const Place& place : state.places) {
    Assignment assignment = place.assignment;
    assignment.reason.clear();
    json["places"].push_back({{"node", place.node}, {"assignment", std::move(assignment)}});
  }
  return json;
}

Duration age_from_ms(std::int64_t ms) {
  return std::chrono::milliseconds(std::clamp<std::int64_t>(ms, 0, to_ms(kMaxTime)));
}

JobRecord record_of(const Json& json) {
  JobRecord record;
  JobState& state = record.state;
  json.at("instance").get_to(record.instance);
  json.at("former_instance").get_to(record.former_instance);
  json.at("spec").get_to(state.spec);
  state.phase = value_in(kJobPhaseWords, json.at("phase"));
  json.at("generation").get_to(state.generation.value);
  json.at("restarts_used").get_to(state.restarts_used);
  json.at("reason").get_to(state.reason);
  json.at("failed").get_to(state.failed);
  json.at("ends").get_to(state.ends);
  take(json, "ending", state.ending);
  take(json, "verdict", state.verdict);
  if (json.contains("end_number")) json.at("end_number").get_to(record.end_number);
  if (json.contains("owner")) json.at("owner").get_to(record.owner.emplace().value);
  // Earlier versions did not write these fields.
  if (json.contains("restart_ages_ms")) {
    for (const Json& age : json.at("restart_ages_ms")) {
      state.restart_ages.push_back(age_from_ms(age.get<std::int64_t>()));
    }
  }
  if (json.contains("strikes")) {
    const Json& strikes = json["strikes"];
    strikes.at("in_a_row").get_to(state.strikes.in_a_row);
    strikes.at("restarts").get_to(state.strikes.restarts);
    take(strikes, "step", state.strikes.step);
  }
  if (json.contains("missing")) json.at("missing").get_to(state.missing);
  if (json.contains("node_failures")) json.at("node_failures").get_to(state.node_failures);
  for (const Json& place : json.at("places")) {
    state.places.push_back(
        {place.at("node").get<NodeSpec>(), place.at("assignment").get<Assignment>()});
    json.at("placed_for").get_to(state.places.back().assignment.reason);
  }
  return record;
}

// Returns whether the state satisfies what Membership relies on beyond the bounds of each
// field.
bool is_possible(const JobState& state) {
  const bool ended = state.phase == JobPhase::kEnded;
  if (ended != state.verdict.has_value()) return false;
  if (state.failed && state.ends.empty() && !ended) return false;
  if (state.generation < Generation(-1) || state.generation.value > kMaxGeneration) return false;
  for (const Place& place : state.places) {
    if (place.assignment.generation != state.generation) return false;
  }
  return state.restarts_used >= 0;
}

Error bad(ErrorKind kind, const std::string& key, const std::string& cause) {
  return Error{.kind = kind, .doing = "read '" + key + "' of the journal", .cause = cause};
}

Result<void> take_entry(const std::string& key, const Json& json, ServiceState& state) {
  const int version = json.at("version").get<int>();
  if (version != kVersion) {
    return bad(ErrorKind::kUnsupported, key,
               "its version is " + std::to_string(version) + ", but this program supports " +
                   std::to_string(kVersion));
  }
  if (key == kServiceKey) {
    json.at("service_id").get_to(state.service_id);
    json.at("jobs_begun").get_to(state.jobs_begun);
    return {};
  }
  JobRecord record = record_of(json);
  if (key != std::string(kJobKey) + record.state.spec.id || !is_possible(record.state)) {
    return bad(ErrorKind::kCorrupt, key, "not written by this service");
  }
  state.jobs.emplace(record.state.spec.id, std::move(record));
  return {};
}

}  // namespace

JournalEntry to_entry(const StateChange& change) {
  if (const auto* begun = std::get_if<ServiceBegun>(&change)) {
    return {std::string(kServiceKey), text_of({{"version", kVersion},
                                               {"service_id", begun->service_id},
                                               {"jobs_begun", begun->jobs_begun}})};
  }
  if (const auto* changed = std::get_if<JobChanged>(&change)) {
    return {std::string(kJobKey) + changed->record.state.spec.id,
            text_of(json_of(changed->record))};
  }
  return {std::string(kJobKey) + std::get<JobForgotten>(change).id, ""};
}

Result<ServiceState> decode_state(const JournalImage& image) {
  ServiceState state;
  for (const auto& [key, value] : image) {
    try {
      if (Result<void> taken = take_entry(key, Json::parse(value), state); !taken) {
        return std::move(taken).error();
      }
    } catch (const Json::exception& exception) {
      return bad(ErrorKind::kCorrupt, key, exception.what());
    }
  }
  return state;
}

}  // namespace ddprun
