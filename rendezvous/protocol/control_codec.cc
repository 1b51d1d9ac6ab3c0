#include "rendezvous/protocol/control_codec.h"

#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/assert.h"
#include "base/seconds.h"
#include "rendezvous/protocol/control_json.h"
#include "rendezvous/store/core/wire_format.h"

// The JSON form of every message: one to_json and one from_json per type, in the order of
// control_message.h. Durations are in milliseconds, ids are plain numbers, enumerators are
// strings.

namespace ddprun {

using Json = nlohmann::json;

void refuse(const Json& json, const std::string& cause) {
  throw Json::other_error::create(501, cause, &json);
}

namespace {

// --- reading fields: an error names the key that is missing, of another type, or out of bounds ---

struct Bounds {
  std::int64_t min;
  std::int64_t max;
};
constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
constexpr Bounds kAnyInt{std::numeric_limits<int>::min(), kMaxInt};
constexpr Bounds kCount{0, kMaxInt};
constexpr Bounds kPort{0, 65535};
constexpr Bounds kSignal{0, 64};
constexpr Bounds kUser{0, std::numeric_limits<std::uint32_t>::max()};
constexpr Bounds kCode{0, 65535};  // exit codes, signals, errno
constexpr Bounds kLogLines{0, kMaxLogLines};
constexpr Bounds kStep{std::numeric_limits<std::int64_t>::min(),
                       std::numeric_limits<std::int64_t>::max()};

std::int64_t integer(const Json& json, const char* key, Bounds bounds) {
  const Json& field = json.at(key);
  // A conversion by the library would truncate numbers that are too large, and fractions.
  const bool huge = field.is_number_unsigned() &&
                    field.get<std::uint64_t>() > static_cast<std::uint64_t>(bounds.max);
  if (field.is_number_integer() && !huge) {
    const std::int64_t value = field.get<std::int64_t>();
    if (value >= bounds.min && value <= bounds.max) return value;
  }
  refuse(json, std::string(key) + " is not a number from " + std::to_string(bounds.min) + " to " +
                   std::to_string(bounds.max));
}

template <class Integer>
void read(const Json& json, const char* key, Integer& value, Bounds bounds) {
  value = static_cast<Integer>(integer(json, key, bounds));
}

void read(const Json& json, const char* key, std::uint64_t& value) {
  const Json& field = json.at(key);
  if (!field.is_number_unsigned()) refuse(json, std::string(key) + " is not a number from 0 on");
  value = field.get<std::uint64_t>();
}

template <class Tag, class Number>
void read(const Json& json, const char* key, Id<Tag, Number>& id, Bounds bounds) {
  read(json, key, id.value, bounds);
}

void read(const Json& json, const char* key, Generation& generation) {
  read(json, key, generation.value, {-1, kMaxGeneration});
}

void read(const Json& json, const char* key, std::string& text, std::size_t max_bytes) {
  json.at(key).get_to(text);
  if (text.size() > max_bytes) {
    refuse(json, std::string(key) + " has " + std::to_string(text.size()) + " bytes, more than " +
                     std::to_string(max_bytes));
  }
}

// Makes text of any origin fit for one line.
std::string printable(std::string text) {
  for (char& c : text) {
    if (is_control(c)) c = '?';
  }
  return clipped(std::move(text), kShownBytes);
}

// Reads a list of addresses. A missing list stays empty.
void read_addresses(const Json& json, const char* key, std::vector<std::string>& addresses,
                    std::size_t most) {
  if (!json.contains(key)) return;
  json.at(key).get_to(addresses);
  if (addresses.size() > most) refuse(json, std::string(key) + " has too many entries");
  for (const std::string& address : addresses) {
    if (address.size() > kMaxNameBytes) refuse(json, std::string(key) + " has no addresses");
  }
}

// Reads an id, host, address or version, which is shown within other text.
void read_name(const Json& json, const char* key, std::string& name) {
  json.at(key).get_to(name);
  const std::string why = why_no_name(name);
  if (!why.empty()) refuse(json, std::string(key) + " " + why);
}

// Reads the version, and returns true if the protocol is ours. Of another protocol, only the
// protocol's number is sure to exist, and it may have any value.
bool read_protocol(const Json& json, int& protocol, std::string& version) {
  const Json& number = json.at("protocol");
  if (number.is_number_integer() && number == kControlProtocol) {
    protocol = kControlProtocol;
    read_name(json, "version", version);
    return true;
  }
  const bool is_int = number.is_number_integer() && number >= kAnyInt.min && number <= kAnyInt.max;
  protocol = is_int ? number.get<int>() : kUnknownProtocol;
  const auto found = json.find("version");
  if (found != json.end() && found->is_string()) version = printable(found->get<std::string>());
  return false;
}

void read_ms(const Json& json, const char* key, Duration& duration,
             Duration min = Duration::zero()) {
  duration = std::chrono::milliseconds(integer(json, key, {to_ms(min), to_ms(kMaxTime)}));
}

}  // namespace

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void to_json(Json& json, const WorkerEnd& end) {
  json = {{"kind", enum_name(kEndKindWords, end.kind)},
          {"code", end.code},
          {"core_dumped", end.core_dumped},
          {"after_stop", end.after_stop},
          {"rank", end.rank.value},
          {"local_rank", end.local_rank.value},
          {"node_rank", end.node_rank.value},
          {"host", end.host},
          {"pid", end.pid},
          {"message", end.message},
          {"stderr_tail", end.stderr_tail},
          {"age_ms", to_ms(end.age)}};
  if (!end.frames.empty()) json["frames"] = end.frames;
  if (end.blames >= 0) json["blames"] = end.blames;
  if (end.step) json["step"] = *end.step;
  if (end.unseen > Duration(0)) json["unseen_ms"] = to_ms(end.unseen);
  if (end.on_request) json["on_request"] = true;
  if (end.finished) json["finished"] = true;
  if (end.out_of_memory != OutOfMemory::kNo) {
    json["out_of_memory"] = enum_name(kOutOfMemoryWords, end.out_of_memory);
  }
}
void from_json(const Json& json, WorkerEnd& end) {
  end.kind = value_in(kEndKindWords, json.at("kind"));
  read(json, "code", end.code, kCode);
  json.at("core_dumped").get_to(end.core_dumped);
  json.at("after_stop").get_to(end.after_stop);
  if (json.contains("unseen_ms")) read_ms(json, "unseen_ms", end.unseen);
  if (json.contains("on_request")) json["on_request"].get_to(end.on_request);
  if (json.contains("finished")) json["finished"].get_to(end.finished);
  if (json.contains("out_of_memory")) {
    end.out_of_memory = value_in(kOutOfMemoryWords, json["out_of_memory"]);
  }
  read(json, "rank", end.rank, kCount);
  read(json, "local_rank", end.local_rank, kCount);
  read(json, "node_rank", end.node_rank, kCount);
  read_name(json, "host", end.host);
  read(json, "pid", end.pid, kCount);
  read(json, "message", end.message, kMaxTextBytes);
  json.at("stderr_tail").get_to(end.stderr_tail);
  if (json.contains("frames")) json.at("frames").get_to(end.frames);
  if (json.contains("blames")) read(json, "blames", end.blames, kCount);
  if (json.contains("step")) read(json, "step", end.step.emplace(), kStep);
  read_ms(json, "age_ms", end.age);
}

void to_json(Json& json, const WorkerSnapshot& one) {
  json = {{"rank", one.rank.value},
          {"local_rank", one.local_rank.value},
          {"node_rank", one.node_rank.value},
          {"host", one.host},
          {"pid", one.pid},
          {"flight", enum_name(kFlightStateWords, one.flight)},
          {"collective", one.collective},
          {"call", one.call},
          {"waited_ms", to_ms(one.waited)},
          {"is_late", one.is_late},
          {"is_stopped", one.is_stopped},
          {"doing", one.doing}};
  if (one.peer >= 0) json["peer"] = one.peer;
  if (one.step) json["step"] = *one.step;
  if (one.group != 0) {
    json["group"] = one.group;
    json["group_name"] = one.group_name;
    if (!one.group_ranks.empty()) json["group_ranks"] = one.group_ranks;
  }
  if (!one.waits_in.empty()) json["waits_in"] = one.waits_in;
  if (!one.frames.empty()) json["frames"] = one.frames;
  if (!one.stderr_tail.empty()) json["stderr_tail"] = one.stderr_tail;
}
void from_json(const Json& json, WorkerSnapshot& one) {
  read(json, "rank", one.rank, kCount);
  read(json, "local_rank", one.local_rank, kCount);
  read(json, "node_rank", one.node_rank, kCount);
  read_name(json, "host", one.host);
  read(json, "pid", one.pid, kCount);
  one.flight = value_in(kFlightStateWords, json.at("flight"));
  read(json, "collective", one.collective, {0, kStep.max});
  read(json, "call", one.call, kMaxNameBytes);
  read_ms(json, "waited_ms", one.waited);
  json.at("is_late").get_to(one.is_late);
  json.at("is_stopped").get_to(one.is_stopped);
  read(json, "doing", one.doing, kMaxNameBytes);
  if (json.contains("peer")) read(json, "peer", one.peer, kCount);
  if (json.contains("step")) read(json, "step", one.step.emplace(), kStep);
  if (json.contains("group")) read(json, "group", one.group);
  if (json.contains("group_name")) read(json, "group_name", one.group_name, kMaxNameBytes);
  if (json.contains("group_ranks")) json.at("group_ranks").get_to(one.group_ranks);
  if (json.contains("waits_in")) read(json, "waits_in", one.waits_in, kMaxNameBytes);
  if (json.contains("frames")) json.at("frames").get_to(one.frames);
  if (json.contains("stderr_tail")) json.at("stderr_tail").get_to(one.stderr_tail);
}

void to_json(Json& json, const AgentStatus& status) {
  json = {{"phase", enum_name(kAgentPhaseWords, status.phase)},
          {"generation", status.generation.value},
          {"ends", status.ends},
          {"more_ends", status.more_ends},
          {"store_port", status.store_port},
          {"leaving", status.leaving},
          {"checkpoints", status.checkpoints}};
  if (status.asked_to_save) json["asked_to_save"] = true;
  for (const LocalRank rank : status.left) json["left"].push_back(rank.value);
  if (status.step) json["step"] = *status.step;
  if (!status.snapshots.empty()) json["sightings"] = status.snapshots;
}
void from_json(const Json& json, AgentStatus& status) {
  status.phase = value_in(kAgentPhaseWords, json.at("phase"));
  read(json, "generation", status.generation);
  json.at("ends").get_to(status.ends);
  if (json.contains("more_ends")) read(json, "more_ends", status.more_ends, kCount);
  read(json, "store_port", status.store_port, kPort);
  read(json, "leaving", status.leaving, kSignal);
  if (json.contains("checkpoints")) {
    read(json, "checkpoints", status.checkpoints, {0, std::numeric_limits<std::int64_t>::max()});
  }
  if (json.contains("asked_to_save")) json.at("asked_to_save").get_to(status.asked_to_save);
  if (json.contains("left")) {
    for (const int rank : json["left"].get<std::vector<int>>()) status.left.emplace_back(rank);
  }
  if (json.contains("step")) read(json, "step", status.step.emplace(), kStep);
  if (json.contains("sightings")) {
    json.at("sightings").get_to(status.snapshots);
    if (status.snapshots.size() > kSnapshotsTold) refuse(json, "sightings has too many entries");
  }
}

void to_json(Json& json, const JobSpec& job) {
  json = {{"id", job.id},
          {"min_nodes", job.nodes.min},
          {"max_nodes", job.nodes.max},
          {"max_restarts", job.max_restarts},
          {"join_timeout_ms", to_ms(job.join_timeout)},
          {"last_call_ms", to_ms(job.last_call)},
          {"on_join", enum_name(kOnJoinWords, job.on_join)},
          {"node_failures", job.node_failures}};
  const RestartRules& rules = job.restart_rules;
  if (rules.window > Duration(0)) json["restart_window_ms"] = to_ms(rules.window);
  if (!rules.final_codes.empty()) json["no_restart_on"] = to_text(rules.final_codes);
  if (rules.on_progress) json["restart_on_progress"] = true;
}
void from_json(const Json& json, JobSpec& job) {
  read_name(json, "id", job.id);
  read(json, "min_nodes", job.nodes.min, {1, kMaxNodes});
  read(json, "max_nodes", job.nodes.max, {job.nodes.min, kMaxNodes});
  read(json, "max_restarts", job.max_restarts, kCount);
  read_ms(json, "join_timeout_ms", job.join_timeout);
  read_ms(json, "last_call_ms", job.last_call);
  if (json.contains("on_join")) job.on_join = value_in(kOnJoinWords, json.at("on_join"));
  if (json.contains("node_failures")) {
    read(json, "node_failures", job.node_failures, {1, kMaxInt});
  }
  RestartRules& rules = job.restart_rules;
  if (json.contains("restart_window_ms")) read_ms(json, "restart_window_ms", rules.window);
  if (json.contains("no_restart_on")) {
    Result<CodeRanges> codes = parse_code_ranges(json.at("no_restart_on").get<std::string>());
    if (!codes) refuse(json, "no_restart_on: " + codes.error().cause);
    rules.final_codes = std::move(*codes);
  }
  if (json.contains("restart_on_progress")) json["restart_on_progress"].get_to(rules.on_progress);
}

void to_json(Json& json, const NodeSpec& node) {
  json = {{"agent_id", node.agent_id},
          {"host", node.host},
          {"slots", node.slots},
          {"address", node.address}};
  put(json, "node_rank", node.node_rank);
  if (!node.other_addresses.empty()) json["other_addresses"] = node.other_addresses;
  if (node.tells_output) json["tells_output"] = true;
  if (node.tells_flight) json["tells_flight"] = true;
}
void from_json(const Json& json, NodeSpec& node) {
  read_name(json, "agent_id", node.agent_id);
  if (node.agent_id.empty()) refuse(json, "agent_id is empty");
  read_name(json, "host", node.host);
  read(json, "slots", node.slots, {1, kMaxSlots});
  read_name(json, "address", node.address);
  if (json.contains("node_rank")) read(json, "node_rank", node.node_rank.emplace(), kAnyInt);
  read_addresses(json, "other_addresses", node.other_addresses, kMaxAddresses);
  if (json.contains("tells_output")) json.at("tells_output").get_to(node.tells_output);
  if (json.contains("tells_flight")) json.at("tells_flight").get_to(node.tells_flight);
}

void to_json(Json& json, const Assignment& assignment) {
  json = {{"generation", assignment.generation.value},
          {"node_rank", assignment.node_rank.value},
          {"node_count", assignment.node_count},
          {"first_rank", assignment.first_rank.value},
          {"world_size", assignment.world_size},
          {"store_host", assignment.store.host},
          {"store_port", assignment.store.port},
          {"restart_count", assignment.restart_count},
          {"reason", assignment.reason},
          {"lease_ms", to_ms(assignment.lease)}};
  if (!assignment.peers.empty()) json["peers"] = assignment.peers;
  if (assignment.restarts_left) json["restarts_left"] = *assignment.restarts_left;
  put(json, "failure", assignment.failure);
}
void from_json(const Json& json, Assignment& assignment) {
  read(json, "generation", assignment.generation);
  read(json, "node_rank", assignment.node_rank, kCount);
  read(json, "node_count", assignment.node_count, {1, kMaxNodes});
  read(json, "first_rank", assignment.first_rank, kCount);
  read(json, "world_size", assignment.world_size, {1, kMaxInt});
  read_name(json, "store_host", assignment.store.host);
  read(json, "store_port", assignment.store.port, kPort);
  read(json, "restart_count", assignment.restart_count, kCount);
  read(json, "reason", assignment.reason, kMaxTextBytes);
  read_addresses(json, "peers", assignment.peers, kMaxPeersBytes);
  if (json.contains("restarts_left")) {
    read(json, "restarts_left", assignment.restarts_left.emplace(), kCount);
  }
  take(json, "failure", assignment.failure);
  if (json.contains("lease_ms")) {
    read_ms(json, "lease_ms", assignment.lease, std::chrono::milliseconds(1));
  }
}

void to_json(Json& json, const Hello& hello) {
  json = {{"protocol", hello.protocol}, {"version", hello.version}, {"instance", hello.instance},
          {"job", hello.job},           {"node", hello.node},       {"status", hello.status}};
  put(json, "assignment", hello.assignment);
}
void from_json(const Json& json, Hello& hello) {
  if (!read_protocol(json, hello.protocol, hello.version)) return;
  read_name(json, "instance", hello.instance);
  json.at("job").get_to(hello.job);
  json.at("node").get_to(hello.node);
  json.at("status").get_to(hello.status);
  take(json, "assignment", hello.assignment);
}

void to_json(Json& json, const Heartbeat& heartbeat) { json = {{"number", heartbeat.number}}; }
void from_json(const Json& json, Heartbeat& heartbeat) { read(json, "number", heartbeat.number); }

void to_json(Json& json, const Leave& leave) {
  json = {{"signal", leave.signal}, {"reason", leave.reason}};
}
void from_json(const Json& json, Leave& leave) {
  read(json, "signal", leave.signal, kSignal);
  read(json, "reason", leave.reason, kMaxTextBytes);
}

void to_json(Json& json, const UserRequest& request) {
  json = {{"what", enum_name(kUserRequestWords, request.what)},
          {"number", request.number},
          {"job", request.job},
          {"by", request.by},
          {"signal", request.signal},
          {"at_once", request.at_once}};
  if (request.rank) json["rank"] = request.rank->value;
  if (request.what == UserRequest::What::kLogs) {
    json["lines"] = request.lines;
    json["follow"] = request.follow;
  }
}
void from_json(const Json& json, UserRequest& request) {
  request.what = value_in(kUserRequestWords, json.at("what"));
  read(json, "number", request.number);
  read_name(json, "job", request.job);
  read_name(json, "by", request.by);
  read(json, "signal", request.signal, kSignal);
  json.at("at_once").get_to(request.at_once);
  if (json.contains("rank")) read(json, "rank", request.rank.emplace(), kCount);
  if (json.contains("lines")) read(json, "lines", request.lines, kLogLines);
  if (json.contains("follow")) json.at("follow").get_to(request.follow);
}

void to_json(Json& json, const Answer& answer) {
  json = {{"number", answer.number}, {"done", answer.done}, {"text", answer.text}};
  if (!answer.page.empty()) json["page"] = answer.page;
  if (answer.more) json["more"] = true;
}
void from_json(const Json& json, Answer& answer) {
  read(json, "number", answer.number);
  json.at("done").get_to(answer.done);
  read(json, "text", answer.text, kMaxTextBytes);
  if (json.contains("page")) read(json, "page", answer.page, kMaxPageBytes);
  if (json.contains("more")) json.at("more").get_to(answer.more);
}

void to_json(Json& json, const ForwardSignal& forward_signal) {
  json = {{"generation", forward_signal.generation.value}, {"signal", forward_signal.signal}};
  if (forward_signal.rank) json["rank"] = forward_signal.rank->value;
}
void from_json(const Json& json, ForwardSignal& forward_signal) {
  read(json, "generation", forward_signal.generation);
  read(json, "signal", forward_signal.signal, kSignal);
  if (json.contains("rank")) read(json, "rank", forward_signal.rank.emplace(), kCount);
}

void to_json(Json& json, const TellOutput& tell) {
  json = {{"what", enum_name(kTellOutputWords, tell.what)}, {"inquiry", tell.inquiry}};
  if (tell.what != TellOutput::What::kBegin) return;
  json["lines"] = tell.lines;
  json["follow"] = tell.follow;
  if (tell.rank) json["rank"] = tell.rank->value;
  if (tell.flight) json["flight"] = true;
}
void from_json(const Json& json, TellOutput& tell) {
  tell.what = value_in(kTellOutputWords, json.at("what"));
  read(json, "inquiry", tell.inquiry);
  if (tell.what != TellOutput::What::kBegin) return;
  read(json, "lines", tell.lines, kLogLines);
  json.at("follow").get_to(tell.follow);
  if (json.contains("rank")) read(json, "rank", tell.rank.emplace(), kCount);
  if (json.contains("flight")) json.at("flight").get_to(tell.flight);
}

void to_json(Json& json, const OutputPage& page) {
  json = {{"inquiry", page.inquiry},
          {"lines", page.lines},
          {"is_ready", page.is_ready},
          {"is_last", page.is_last}};
}
void from_json(const Json& json, OutputPage& page) {
  read(json, "inquiry", page.inquiry);
  read(json, "lines", page.lines, kMaxPageBytes);
  json.at("is_ready").get_to(page.is_ready);
  json.at("is_last").get_to(page.is_last);
}

void to_json(Json& json, const Welcome& welcome) {
  json = {{"instance", welcome.instance},
          {"heartbeat_interval_ms", to_ms(welcome.heartbeat_interval)},
          {"agent_patience_ms", to_ms(welcome.agent_patience)},
          {"embedded", welcome.embedded},
          {"host", welcome.host}};
}
void from_json(const Json& json, Welcome& welcome) {
  constexpr Duration kShortest = std::chrono::milliseconds(1);  // zero would make an endless loop
  read_name(json, "instance", welcome.instance);
  read_ms(json, "heartbeat_interval_ms", welcome.heartbeat_interval, kShortest);
  read_ms(json, "agent_patience_ms", welcome.agent_patience, kShortest);
  json.at("embedded").get_to(welcome.embedded);
  read_name(json, "host", welcome.host);
}

void to_json(Json& json, const Refused& refused) { json = {{"reason", refused.reason}}; }
void from_json(const Json& json, Refused& refused) {
  read(json, "reason", refused.reason, kMaxTextBytes);
}

void to_json(Json& json, const Silence& silence) { json = {{"reason", silence.reason}}; }
void from_json(const Json& json, Silence& silence) {
  read(json, "reason", silence.reason, kMaxTextBytes);
}

void to_json(Json& json, const HeartbeatAck& ack) {
  json = {{"number", ack.number}, {"next_ms", to_ms(ack.next)}};
}
void from_json(const Json& json, HeartbeatAck& ack) {
  read(json, "number", ack.number);
  if (json.contains("next_ms")) read_ms(json, "next_ms", ack.next);
}

void to_json(Json& json, const Wait& wait) {
  json = {{"reason", wait.reason}};
  if (wait.generation >= Generation(0)) json["generation"] = wait.generation.value;
}
void from_json(const Json& json, Wait& wait) {
  read(json, "reason", wait.reason, kMaxTextBytes);
  if (json.contains("generation")) read(json, "generation", wait.generation);
}

void to_json(Json& json, const Stop& stop) {
  json = {{"generation", stop.generation.value}, {"reason", stop.reason}};
  if (stop.at_once) json["at_once"] = true;
  if (stop.look) json["look"] = true;
}
void from_json(const Json& json, Stop& stop) {
  read(json, "generation", stop.generation);
  read(json, "reason", stop.reason, kMaxTextBytes);
  if (json.contains("at_once")) json.at("at_once").get_to(stop.at_once);
  if (json.contains("look")) json.at("look").get_to(stop.look);
}

void to_json(Json& json, const Verdict& verdict) {
  json = {{"success", verdict.success},
          {"exit_code", verdict.exit_code},
          {"headline", verdict.headline},
          {"ends", verdict.ends},
          {"more_ends", verdict.more_ends},
          {"generation", verdict.generation.value},
          {"restarts_used", verdict.restarts_used},
          {"max_restarts", verdict.max_restarts}};
  if (!verdict.seen.empty()) json["seen"] = verdict.seen;
}
void from_json(const Json& json, Verdict& verdict) {
  json.at("success").get_to(verdict.success);
  read(json, "exit_code", verdict.exit_code, kCode);
  read(json, "headline", verdict.headline, kMaxTextBytes);
  json.at("ends").get_to(verdict.ends);
  if (json.contains("more_ends")) read(json, "more_ends", verdict.more_ends, kCount);
  read(json, "generation", verdict.generation);
  read(json, "restarts_used", verdict.restarts_used, kCount);
  read(json, "max_restarts", verdict.max_restarts, kCount);
  if (json.contains("seen")) {
    json["seen"].get_to(verdict.seen);
    if (verdict.seen.size() > kMaxSeenLines) refuse(json, "seen has too many lines");
  }
}

void to_json(Json& json, const End& end) { json = {{"verdict", end.verdict}}; }
void from_json(const Json& json, End& end) { json.at("verdict").get_to(end.verdict); }

void to_json(Json& json, const Knock& knock) {
  json = {{"protocol", knock.protocol},
          {"version", knock.version},
          {"job", knock.job},
          {"nonce", knock.nonce}};
  if (knock.method != ProofMethod::kKey)
    json["method"] = enum_name(kProofMethodWords, knock.method);
}
void from_json(const Json& json, Knock& knock) {
  if (!read_protocol(json, knock.protocol, knock.version)) return;
  if (json.contains("method")) knock.method = value_in(kProofMethodWords, json.at("method"));
  read_name(json, "job", knock.job);
  read_name(json, "nonce", knock.nonce);
}

void to_json(Json& json, const Proof& proof) { json = {{"proof", proof.proof}}; }
void from_json(const Json& json, Proof& proof) { read_name(json, "proof", proof.proof); }

void to_json(Json& json, const Challenge& challenge) {
  json = {{"nonce", challenge.nonce}};
  if (challenge.user) json["user"] = challenge.user->value;
}
void from_json(const Json& json, Challenge& challenge) {
  read_name(json, "nonce", challenge.nonce);
  if (json.contains("user")) read(json, "user", challenge.user.emplace(), kUser);
}

void to_json(Json& json, const Proven& proven) { json = {{"proof", proven.proof}}; }
void from_json(const Json& json, Proven& proven) { read_name(json, "proof", proven.proof); }

void to_json(Json& json, const Open&) { json = Json::object(); }
void from_json(const Json&, Open&) {}

void to_json(Json&, const NoHandshake&) {
  DDPRUN_ASSERT(false, "what is no message of the handshake is not written as one");
}
void from_json(const Json&, NoHandshake&) {}

namespace {

std::string too_large(std::size_t bytes, std::size_t limit) {
  return std::to_string(bytes) + " bytes are more than the limit of " + std::to_string(limit);
}

// The "type" of each alternative, in the order of the variants.
constexpr std::array<const char*, std::variant_size_v<AgentMessage>> kAgentTypes{
    "hello", "status", "heartbeat", "leave", "request", "output"};
constexpr std::array<const char*, std::variant_size_v<ServiceMessage>> kServiceTypes{
    "welcome", "refused", "silence", "heartbeat_ack", "wait",       "assignment",
    "stop",    "end",     "answer",  "pass_on",       "tell_output"};
// The first entry stands for every type that is not in the list.
constexpr std::array<const char*, std::variant_size_v<AgentHandshakeMessage>> kAgentHandshakeTypes{
    "", "knock", "proof"};
constexpr std::array<const char*, std::variant_size_v<ServiceHandshakeMessage>>
    kServiceHandshakeTypes{"", "refused", "silence", "challenge", "proven", "open"};

Result<std::string> frame(const Json& json, const char* type) {
  const std::string text = text_of(json);
  if (text.size() > kMaxControlFrameBytes) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = std::string("write a control message of type ") + type,
                 .cause = too_large(text.size(), kMaxControlFrameBytes)};
  }
  std::string bytes(kControlMagic);
  put_u32(bytes, static_cast<std::uint32_t>(text.size()));
  return bytes + text;
}

template <class Variant, class Types>
Result<std::string> encode_variant(const Variant& message, const Types& types) {
  Json json = std::visit([](const auto& alternative) { return Json(alternative); }, message);
  const char* type = types[message.index()];
  json["type"] = type;
  return frame(json, type);
}

template <class Variant, std::size_t I = 0, class Types>
Variant decode_alternative(std::size_t index, const Json& json, const Types& types) {
  if constexpr (I < std::variant_size_v<Variant>) {
    if (index == I) return json.get<std::variant_alternative_t<I, Variant>>();
    return decode_alternative<Variant, I + 1>(index, json, types);
  } else {
    DDPRUN_ASSERT(false, "the type was looked up");
  }
}

template <class Variant, class Types>
Result<Variant> decode_variant(std::string_view text, const Types& types) {
  const auto bad = [](std::string cause) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "read a control message",
                 .cause = printable(std::move(cause))};
  };
  try {
    const Json json = Json::parse(text);
    const std::string& type = json.at("type").get_ref<const std::string&>();
    for (std::size_t i = 0; i < types.size(); ++i) {
      if (type == types[i]) return decode_alternative<Variant>(i, json, types);
    }
    if constexpr (std::is_same_v<std::variant_alternative_t<0, Variant>, NoHandshake>) {
      return Variant(NoHandshake());
    }
    Error unknown = bad("unknown type '" + type + "'");
    unknown.kind = ErrorKind::kUnsupported;
    return unknown;
  } catch (const Json::exception& exception) {
    return bad(exception.what());
  }
}

}  // namespace

Result<std::string> encode(const AgentMessage& message) {
  return encode_variant(message, kAgentTypes);
}
Result<std::string> encode(const ServiceMessage& message) {
  return encode_variant(message, kServiceTypes);
}

Result<std::string> encode(const AgentHandshakeMessage& message) {
  return encode_variant(message, kAgentHandshakeTypes);
}
Result<std::string> encode(const ServiceHandshakeMessage& message) {
  return encode_variant(message, kServiceHandshakeTypes);
}

Result<AgentMessage> decode_agent_message(std::string_view json) {
  return decode_variant<AgentMessage>(json, kAgentTypes);
}
Result<ServiceMessage> decode_service_message(std::string_view json) {
  return decode_variant<ServiceMessage>(json, kServiceTypes);
}

Result<AgentHandshakeMessage> decode_agent_handshake(std::string_view json) {
  return decode_variant<AgentHandshakeMessage>(json, kAgentHandshakeTypes);
}
Result<ServiceHandshakeMessage> decode_service_handshake(std::string_view json) {
  return decode_variant<ServiceHandshakeMessage>(json, kServiceHandshakeTypes);
}

Result<std::optional<std::string_view>> FrameReader::next() {
  const auto bad = [](std::string cause) {
    return Error{
        .kind = ErrorKind::kProtocol, .doing = "read a control frame", .cause = std::move(cause)};
  };
  buffer_.consume(std::exchange(handed_out_, 0));
  const std::string_view bytes = buffer_.bytes();
  if (!kControlMagic.starts_with(bytes.substr(0, kControlMagic.size()))) {
    return bad("it does not begin with " + std::string(kControlMagic));
  }
  if (bytes.size() < kControlHeaderBytes) return std::optional<std::string_view>();
  const std::size_t length = get_u32(bytes.substr(kControlMagic.size()));
  if (length > limit_) return bad(too_large(length, limit_));
  if (bytes.size() < kControlHeaderBytes + length) return std::optional<std::string_view>();
  handed_out_ = kControlHeaderBytes + length;
  return std::optional(bytes.substr(kControlHeaderBytes, length));
}

}  // namespace ddprun
