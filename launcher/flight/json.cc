#include "launcher/flight/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/parse_number.h"
#include "rendezvous/protocol/json_fields.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

// Lists the plain fields of a call. Those that it does not set are left out.
template <class F>
void fields_of(F& at, Of<F, FlightEntry>& call) {
  at.field("number", call.number);
  at.field("begun_ns", call.begun_ns);
  at.optional("collective", true, call.collective);
  at.optional("bytes", true, call.bytes);
  at.optional("group", call.group != 0, call.group);
  at.optional("ended_ns", call.ended_ns != 0, call.ended_ns);
  at.optional("peer", call.peer >= 0, call.peer);
  at.optional("failed", call.failed, call.failed);
  at.optional("tag", call.tag != 0, call.tag);
  at.optional("origin", call.origin != 0, call.origin);
}

FlightEntry entry_of(const Json& json) {
  FlightEntry call{.call = call_named(json.at("call").get<std::string>()),
                   .dtype = type_named(json.value("dtype", "")),
                   .op = op_named(json.value("op", ""))};
  FieldReader at(json);
  fields_of(at, call);
  return call;
}

Json json_of(const FlightGroupFacts& group) {
  return {{"id", group.id},
          {"name", group.name},
          {"size", group.size},
          // A string, because some readers cannot hold it as a number.
          {"digest", std::to_string(group.digest)},
          {"ranks", group.ranks}};
}

FlightGroupFacts group_of(const Json& json) {
  return {.id = json.at("id").get<std::uint64_t>(),
          .name = json.value("name", ""),
          .size = json.value("size", std::uint32_t{0}),
          .digest = parse_number<std::uint64_t>(json.value("digest", "")).value_or(0),
          .ranks = json.value("ranks", std::vector<int>())};
}

// Lists the plain fields of a record.
template <class F>
void fields_of(F& at, Of<F, RankFlight>& flight) {
  at.field("rank", flight.rank);
  at.optional("local_rank", true, flight.local_rank);
  at.optional("host", true, flight.host);
  at.optional("pid", true, flight.pid);
  at.optional("lives", true, flight.lives);
  at.optional("stopped", true, flight.is_stopped);
  at.optional("state", true, flight.state);
  at.field("boot_ns", flight.boot_ns);
  at.field("wall_ns", flight.wall_ns);
  at.optional("call_count", true, flight.call_count);
  at.optional("step", flight.step);
  at.optional("generation", flight.generation);
}

// Returns the record without its calls.
Json head_of(const RankFlight& flight) {
  Json json{{"groups", Json::array()}, {"origins", Json::object()}};
  FieldWriter at(json);
  fields_of(at, flight);
  for (const FlightGroupFacts& group : flight.groups) json["groups"].push_back(json_of(group));
  for (const FlightStep& one : flight.steps) json["steps"].push_back({one.step, one.ns});
  for (const CheckpointSpan& one : flight.checkpoints) {
    json["checkpoints"].push_back({one.begun_ns, one.ended_ns});
  }
  for (const auto& [number, text] : flight.origins) json["origins"][std::to_string(number)] = text;
  return json;
}

void take_calls(const Json& json, RankFlight& flight) {
  for (const Json& call : json.at("calls")) flight.calls.push_back(entry_of(call));
}

RankFlight flight_of(const Json& json) {
  RankFlight flight;
  FieldReader at(json);
  fields_of(at, flight);
  for (const Json& group : json.value("groups", Json::array())) {
    flight.groups.push_back(group_of(group));
  }
  const Json origins = json.value("origins", Json::object());
  for (const auto& [number, text] : origins.items()) {
    const auto origin = parse_number<std::uint32_t>(number);
    if (origin) flight.origins[*origin] = text.get<std::string>();
  }
  for (const Json& one : json.value("steps", Json::array())) {
    flight.steps.push_back({one.at(0).get<std::int64_t>(), one.at(1).get<std::uint64_t>()});
  }
  for (const Json& one : json.value("checkpoints", Json::array())) {
    flight.checkpoints.push_back({one.at(0).get<std::uint64_t>(), one.at(1).get<std::uint64_t>()});
  }
  take_calls(json, flight);
  return flight;
}

Json calls_json(const RankFlight& flight, std::size_t begin, std::size_t end) {
  Json calls = Json::array();
  for (std::size_t i = begin; i < end; ++i) calls.push_back(call_json(flight.calls[i]));
  return calls;
}

}  // namespace

nlohmann::json call_json(const FlightEntry& call) {
  Json json{{"call", name_of(call.call)}};
  if (call.dtype != FlightType::kNone) json["dtype"] = name_of(call.dtype);
  if (call.op != FlightOp::kNone) json["op"] = name_of(call.op);
  FieldWriter at(json);
  fields_of(at, call);
  return json;
}

nlohmann::json flight_json(const RankFlight& flight) {
  Json json = head_of(flight);
  json["calls"] = calls_json(flight, 0, flight.calls.size());
  return json;
}

std::vector<std::string> flight_lines(const RankFlight& flight) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  do {
    const std::size_t end = std::min(begin + kCallsOnALine, flight.calls.size());
    Json json = begin == 0 ? head_of(flight) : Json{{"rank", flight.rank.value}, {"goes_on", true}};
    json["calls"] = calls_json(flight, begin, end);
    lines.push_back(text_of(Json{{"flight", std::move(json)}}));
    begin = end;
  } while (begin < flight.calls.size());
  return lines;
}

bool take_flight_line(std::string_view json_line, std::vector<RankFlight>& flights) {
  const Json line = Json::parse(json_line, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object() || !line.contains("flight")) return false;
  try {
    const Json& json = line.at("flight");
    if (json.value("goes_on", false)) {
      const Rank rank(json.at("rank").get<int>());
      const auto found = std::ranges::find(flights, rank, &RankFlight::rank);
      if (found == flights.end()) return false;
      take_calls(json, *found);
    } else {
      flights.push_back(flight_of(json));
    }
    return true;
  } catch (const Json::exception&) {
    return false;  // from another version
  }
}

std::string flight_file(const std::vector<RankFlight>& flights) {
  std::string text = "[";
  for (const RankFlight& flight : flights) {
    text += (text.size() > 1 ? ",\n" : "\n") + text_of(flight_json(flight));
  }
  return text + "\n]\n";
}

Result<std::vector<RankFlight>> parse_flight_file(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) return invalid_argument("not a flight.json: no JSON array");
  std::vector<RankFlight> flights;
  try {
    for (const Json& one : json) flights.push_back(flight_of(one));
  } catch (const Json::exception& error) {
    return invalid_argument("not a flight.json: " + std::string(error.what()));
  }
  return flights;
}

}  // namespace ddprun
