#include "launcher/flight/json.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/parse_number.h"
#include "rendezvous/protocol/control_json.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

// Omits fields that the call does not set.
Json json_of(const FlightEntry& call) {
  Json json{{"number", call.number},
            {"call", name_of(call.call)},
            {"begun_ns", call.begun_ns},
            {"collective", call.collective},
            {"bytes", call.bytes}};
  if (call.group != 0) json["group"] = call.group;
  if (call.ended_ns != 0) json["ended_ns"] = call.ended_ns;
  if (call.peer >= 0) json["peer"] = call.peer;
  if (call.failed) json["failed"] = true;
  if (call.dtype != FlightType::kNone) json["dtype"] = name_of(call.dtype);
  if (call.op != FlightOp::kNone) json["op"] = name_of(call.op);
  if (call.tag != 0) json["tag"] = call.tag;
  if (call.origin != 0) json["origin"] = call.origin;
  return json;
}

FlightEntry entry_of(const Json& json) {
  return {.number = json.at("number").get<std::uint64_t>(),
          .begun_ns = json.at("begun_ns").get<std::uint64_t>(),
          .ended_ns = json.value("ended_ns", std::uint64_t{0}),
          .collective = json.value("collective", std::uint64_t{0}),
          .bytes = json.value("bytes", std::uint64_t{0}),
          .group = json.value("group", std::uint64_t{0}),
          .peer = json.value("peer", -1),
          .call = call_named(json.at("call").get<std::string>()),
          .failed = json.value("failed", false),
          .dtype = type_named(json.value("dtype", "")),
          .op = op_named(json.value("op", "")),
          .tag = json.value("tag", 0),
          .origin = json.value("origin", std::uint32_t{0})};
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

// Returns the record without its calls.
Json head_of(const RankFlight& flight) {
  Json json{{"rank", flight.rank.value}, {"local_rank", flight.local_rank.value},
            {"host", flight.host},       {"pid", flight.pid},
            {"lives", flight.lives},     {"stopped", flight.is_stopped},
            {"state", flight.state},     {"boot_ns", flight.boot_ns},
            {"wall_ns", flight.wall_ns}, {"call_count", flight.call_count},
            {"groups", Json::array()},   {"origins", Json::object()}};
  if (flight.step) json["step"] = *flight.step;
  for (const FlightGroupFacts& group : flight.groups) json["groups"].push_back(json_of(group));
  for (const auto& [number, text] : flight.origins) json["origins"][std::to_string(number)] = text;
  return json;
}

void take_head(const Json& json, RankFlight& flight) {
  flight.local_rank = LocalRank(json.value("local_rank", 0));
  flight.host = json.value("host", "");
  flight.pid = json.value("pid", 0);
  flight.lives = json.value("lives", false);
  flight.is_stopped = json.value("stopped", false);
  flight.state = json.value("state", "");
  flight.boot_ns = json.at("boot_ns").get<std::uint64_t>();
  flight.wall_ns = json.at("wall_ns").get<std::int64_t>();
  flight.call_count = json.value("call_count", std::uint64_t{0});
  if (json.contains("step")) flight.step = json.at("step").get<std::int64_t>();
  for (const Json& group : json.value("groups", Json::array())) {
    flight.groups.push_back(group_of(group));
  }
  const Json origins = json.value("origins", Json::object());
  for (const auto& [number, text] : origins.items()) {
    const auto origin = parse_number<std::uint32_t>(number);
    if (origin) flight.origins[*origin] = text.get<std::string>();
  }
}

void take_calls(const Json& json, RankFlight& flight) {
  for (const Json& call : json.at("calls")) flight.calls.push_back(entry_of(call));
}

Json calls_json(const RankFlight& flight, std::size_t begin, std::size_t end) {
  Json calls = Json::array();
  for (std::size_t i = begin; i < end; ++i) calls.push_back(json_of(flight.calls[i]));
  return calls;
}

}  // namespace

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

bool FlightCollector::take(std::string_view json_line) {
  const Json line = Json::parse(json_line, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object() || !line.contains("flight")) return false;
  try {
    const Json& json = line.at("flight");
    const Rank rank(json.at("rank").get<int>());
    if (json.value("goes_on", false)) {
      const auto found = std::ranges::find(flights_, rank, &RankFlight::rank);
      if (found == flights_.end()) return false;
      take_calls(json, *found);
      return true;
    }
    RankFlight flight{.rank = rank};
    take_head(json, flight);
    take_calls(json, flight);
    flights_.push_back(std::move(flight));
    return true;
  } catch (const Json::exception&) {
    return false;  // from another version
  }
}

std::vector<RankFlight> FlightCollector::flights() const {
  std::vector<RankFlight> sorted = flights_;
  std::ranges::stable_sort(sorted, {}, &RankFlight::rank);
  return sorted;
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
    for (const Json& one : json) {
      flights.push_back({.rank = Rank(one.at("rank").get<int>())});
      take_head(one, flights.back());
      take_calls(one, flights.back());
    }
  } catch (const Json::exception& error) {
    return invalid_argument("not a flight.json: " + std::string(error.what()));
  }
  return flights;
}

// --- traces --------------------------------------------------------------------------------------

namespace {

constexpr int kLanes = 1000;  // rows per group; calls beyond that share the last row

// Lanes: the rows of one group, chosen so that calls in a row do not overlap. A row is free
// from its time in busy_until_ on.
class Lanes {
 public:
  int lane_for(std::uint64_t begun_ns, std::uint64_t ended_ns) {
    std::size_t lane = 0;
    while (lane < busy_until_.size() && busy_until_[lane] > begun_ns) ++lane;
    if (lane == busy_until_.size()) busy_until_.push_back(0);
    busy_until_[lane] = ended_ns == 0 ? UINT64_MAX : ended_ns;
    return static_cast<int>(std::min<std::size_t>(lane, kLanes - 1));
  }
  int count() const { return static_cast<int>(std::min<std::size_t>(busy_until_.size(), kLanes)); }

 private:
  std::vector<std::uint64_t> busy_until_;
};

// Returns microseconds of the wall clock. Computes unsigned, because a worker's memory may hold
// any time.
double wall_us(const RankFlight& flight, std::uint64_t boot_ns) {
  const std::uint64_t wall_ns =
      static_cast<std::uint64_t>(flight.wall_ns) - (flight.boot_ns - boot_ns);
  return static_cast<double>(wall_ns) / 1000;
}

std::string name_of_row(const RankFlight& flight, std::uint64_t group, int lane) {
  std::string name = group == 0 ? "world" : "group " + std::to_string(group);
  for (const FlightGroupFacts& facts : flight.groups) {
    if (group != 0 && facts.id == group && !facts.name.empty()) name = facts.name;
  }
  return lane == 0 ? name : name + " (" + std::to_string(lane + 1) + ")";
}

Json metadata(const char* what, int pid, int tid, Json arguments) {
  return {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", std::move(arguments)}};
}

Json event_of(const RankFlight& flight, const FlightEntry& call, int row) {
  Json event{{"name", name_of(call.call)},
             {"cat", "ddprun"},
             {"pid", flight.rank.value},
             {"tid", row},
             {"ts", wall_us(flight, call.begun_ns)},
             {"args", json_of(call)}};
  const auto origin = flight.origins.find(call.origin);
  if (origin != flight.origins.end()) event["args"]["from"] = origin->second;
  if (call.ended_ns == 0) {
    event["ph"] = "B";  // in progress, so it has no end
    return event;
  }
  event["ph"] = "X";
  const std::uint64_t took = std::max(call.ended_ns, call.begun_ns) - call.begun_ns;
  event["dur"] = static_cast<double>(took) / 1000;
  return event;
}

void put_trace(const RankFlight& flight, const std::map<std::uint64_t, int>& rows, Json& events) {
  const int pid = flight.rank.value;
  events.push_back(metadata("process_name", pid, 0,
                            {{"name", "rank " + to_text(flight.rank) + " on " + flight.host}}));
  events.push_back(metadata("process_sort_index", pid, 0, {{"sort_index", pid}}));
  std::map<std::uint64_t, Lanes> lanes;
  for (const FlightEntry& call : flight.calls) {
    const int lane = lanes[call.group].lane_for(call.begun_ns, call.ended_ns);
    events.push_back(event_of(flight, call, rows.at(call.group) * kLanes + lane));
  }
  for (const auto& [group, of_group] : lanes) {
    for (int lane = 0; lane < of_group.count(); ++lane) {
      events.push_back(metadata("thread_name", pid, rows.at(group) * kLanes + lane,
                                {{"name", name_of_row(flight, group, lane)}}));
    }
  }
}

}  // namespace

std::string chrome_trace(const std::vector<RankFlight>& flights) {
  std::map<std::uint64_t, int> rows;  // group to row, the same for all ranks
  for (const RankFlight& flight : flights) {
    for (const FlightEntry& call : flight.calls) rows.emplace(call.group, 0);
  }
  int row = 0;
  for (auto& [group, number] : rows) number = row++;
  Json events = Json::array();
  for (const RankFlight& flight : flights) put_trace(flight, rows, events);
  return text_of(Json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}) + "\n";
}

}  // namespace ddprun
