#include "rendezvous/persistence/state_codec.h"

#include <nlohmann/json.hpp>

#include "base/concat.h"
#include "rendezvous/protocol/shared_fields.h"

namespace ddprun {

using Json = nlohmann::json;

template <class F>
void fields(F& at, Of<F, Strikes>& strikes) {
  at.field("in_a_row", strikes.in_a_row);
  at.field("restarts", strikes.restarts);
  at.optional("step", strikes.step);
}

template <class F>
void fields(F& at, Of<F, TrainedSteps>& steps) {
  at.field("first", steps.first, kStep);
  at.field("last", steps.last, kStep);
  at.field("time_ms", steps.time);
}

template <class F>
void fields(F& at, Of<F, OpenGeneration>& open) {
  at.field("heard_ms", open.heard);
  at.optional("started_ms", open.started);
  at.optional("first_step_ms", open.first_step_at);
  at.field("first_step", open.first_step, kStep);
  at.field("last_step", open.last_step, kStep);
  at.field("checkpoint_ms", open.checkpoint);
  at.field("stopped_ms", open.stopped);
  at.optional("hung_ms", open.hung);
}

// The times of the calendar are in milliseconds since 1970.
template <class F>
void fields(F& at, Of<F, BooksState>& books) {
  at.field("booked", books.booked);
  at.field("since_ms", books.since);
  at.field("cause", books.cause, kTimeCauseWords);
  at.field("in_generation", books.in_generation);
  at.optional("left_ms", books.left);
  at.optional("open", books.in_generation, books.open);
  at.optional("steps", !books.steps.empty(), books.steps, Most{TimeBooks::kSpansKept});
}

template <class F>
void fields(F& at, Of<F, GenerationRecord>& one) {
  at.field("number", one.number);
  at.optional("nodes", one.nodes > 0, one.nodes, kCount);
  at.optional("ranks", one.ranks > 0, one.ranks, kCount);
  at.optional("formed_ms", one.formed);
  at.optional("ended_ms", one.ended);
  at.optional("end", one.end != GenerationEnd::kNone, one.end, kGenerationEndWords);
  at.optional("what", !one.what.empty(), one.what, kMaxTextBytes);
}

// All fields but the places. Optional: earlier versions did not write it, or it may have no value.
template <class F>
void fields(F& at, Of<F, JobRecord>& record) {
  auto& state = record.state;
  at.field("instance", record.instance);
  at.field("former_instance", record.former_instance);
  at.field("spec", state.spec);
  at.field("phase", state.phase, kJobPhaseWords);
  at.field("generation", state.generation.value);
  at.field("restarts_used", state.restarts_used);
  at.field("reason", state.reason);
  at.field("failed", state.failed);
  at.field("ends", state.ends);
  at.optional("ending", state.ending);
  at.optional("verdict", state.verdict);
  at.optional("end_number", record.end_number > 0, record.end_number);
  at.optional("owner", record.owner);
  at.optional("restart_ages_ms", true, state.restart_ages);
  at.optional("strikes", state.strikes != Strikes(), state.strikes);
  at.optional("missing", true, state.missing);
  at.optional("node_failures", true, state.node_failures);
  at.optional("books", state.books);
  at.optional("generations", !state.generations.empty(), state.generations,
              Most{GenerationHistory::kKept});
}

namespace {

constexpr int kVersion = 1;
constexpr std::string_view kServiceKey = "service";
constexpr std::string_view kJobKey = "job/";

Json json_of(const JobRecord& record) {
  Json json = record;
  json["version"] = kVersion;
  json["places"] = Json::array();
  const std::vector<Place>& places = record.state.places;
  // All places have the same reason, which may be long, so it is written once.
  if (!places.empty()) json["placed_for"] = places.front().assignment.reason;
  for (const Place& place : places) {
    Assignment assignment = place.assignment;
    assignment.reason.clear();
    json["places"].push_back({{"node", place.node}, {"assignment", std::move(assignment)}});
  }
  return json;
}

JobRecord record_of(const Json& json) {
  JobRecord record = json.get<JobRecord>();
  for (const Json& place : json.at("places")) {
    record.state.places.push_back(
        {place.at("node").get<NodeSpec>(), place.at("assignment").get<Assignment>()});
    json.at("placed_for").get_to(record.state.places.back().assignment.reason);
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
  if (state.books) {
    for (const TrainedSteps& steps : state.books->steps)
      if (steps.last < steps.first) return false;
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
               concat("its version is ", version, ", but this program supports ", kVersion));
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
