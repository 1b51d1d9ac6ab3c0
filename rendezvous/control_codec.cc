#include "rendezvous/control_codec.h"

#include <array>
#include <nlohmann/json.hpp>

#include "base/assert.h"

// The JSON form of every message: one to_json and one from_json per type, in the order of
// control_message.h. Durations are milliseconds, ids plain numbers, enumerations words.

namespace ddprun {

using Json = nlohmann::json;

namespace {

template <class Enum, std::size_t N>
using Names = std::array<std::pair<Enum, const char*>, N>;

constexpr Names<EndKind, 4> kEndKinds{{{EndKind::kExited, "exited"},
                                       {EndKind::kSignaled, "signaled"},
                                       {EndKind::kNotStarted, "not_started"},
                                       {EndKind::kNodeLost, "node_lost"}}};
constexpr Names<AgentPhase, 4> kPhases{{{AgentPhase::kIdle, "idle"},
                                        {AgentPhase::kRunning, "running"},
                                        {AgentPhase::kStopping, "stopping"},
                                        {AgentPhase::kFinished, "finished"}}};

template <class Enum, std::size_t N>
const char* name_in(const Names<Enum, N>& names, Enum value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  DDPRUN_ASSERT(false, "every enumerator has a name");
}

template <class Enum, std::size_t N>
Enum value_in(const Names<Enum, N>& names, const Json& json) {
  const std::string& text = json.get_ref<const std::string&>();
  for (const auto& [known, name] : names) {
    if (text == name) return known;
  }
  throw Json::other_error::create(501, "unknown word '" + text + "'", &json);
}

std::int64_t to_ms(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}
Duration from_ms(const Json& json) { return std::chrono::milliseconds(json.get<std::int64_t>()); }

}  // namespace

void to_json(Json& json, const WorkerEnd& end) {
  json = {{"kind", name_in(kEndKinds, end.kind)},
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
}
void from_json(const Json& json, WorkerEnd& end) {
  end.kind = value_in(kEndKinds, json.at("kind"));
  json.at("code").get_to(end.code);
  json.at("core_dumped").get_to(end.core_dumped);
  json.at("after_stop").get_to(end.after_stop);
  json.at("rank").get_to(end.rank.value);
  json.at("local_rank").get_to(end.local_rank.value);
  json.at("node_rank").get_to(end.node_rank.value);
  json.at("host").get_to(end.host);
  json.at("pid").get_to(end.pid);
  json.at("message").get_to(end.message);
  json.at("stderr_tail").get_to(end.stderr_tail);
  end.age = from_ms(json.at("age_ms"));
}

void to_json(Json& json, const AgentStatus& status) {
  json = {{"phase", name_in(kPhases, status.phase)},
          {"generation", status.generation.value},
          {"ends", status.ends},
          {"store_port", status.store_port},
          {"leaving", status.leaving}};
}
void from_json(const Json& json, AgentStatus& status) {
  status.phase = value_in(kPhases, json.at("phase"));
  json.at("generation").get_to(status.generation.value);
  json.at("ends").get_to(status.ends);
  json.at("store_port").get_to(status.store_port);
  json.at("leaving").get_to(status.leaving);
}

void to_json(Json& json, const JobSpec& job) {
  json = {{"id", job.id},
          {"min_nodes", job.nodes.min},
          {"max_nodes", job.nodes.max},
          {"max_restarts", job.max_restarts},
          {"join_timeout_ms", to_ms(job.join_timeout)},
          {"last_call_ms", to_ms(job.last_call)}};
}
void from_json(const Json& json, JobSpec& job) {
  json.at("id").get_to(job.id);
  json.at("min_nodes").get_to(job.nodes.min);
  json.at("max_nodes").get_to(job.nodes.max);
  json.at("max_restarts").get_to(job.max_restarts);
  job.join_timeout = from_ms(json.at("join_timeout_ms"));
  job.last_call = from_ms(json.at("last_call_ms"));
}

void to_json(Json& json, const NodeSpec& node) {
  json = {{"agent_id", node.agent_id},
          {"host", node.host},
          {"slots", node.slots},
          {"address", node.address}};
  if (node.node_rank) json["node_rank"] = *node.node_rank;
}
void from_json(const Json& json, NodeSpec& node) {
  json.at("agent_id").get_to(node.agent_id);
  json.at("host").get_to(node.host);
  json.at("slots").get_to(node.slots);
  json.at("address").get_to(node.address);
  if (json.contains("node_rank")) node.node_rank = json.at("node_rank").get<int>();
}

void to_json(Json& json, const Hello& hello) {
  json = {{"protocol", hello.protocol}, {"version", hello.version}, {"instance", hello.instance},
          {"job", hello.job},           {"node", hello.node},       {"status", hello.status}};
}
void from_json(const Json& json, Hello& hello) {
  json.at("protocol").get_to(hello.protocol);
  json.at("version").get_to(hello.version);
  // Of another protocol only these two are sure to be there.
  if (hello.protocol != kControlProtocol) return;
  json.at("instance").get_to(hello.instance);
  json.at("job").get_to(hello.job);
  json.at("node").get_to(hello.node);
  json.at("status").get_to(hello.status);
}

void to_json(Json& json, const Heartbeat& heartbeat) { json = {{"number", heartbeat.number}}; }
void from_json(const Json& json, Heartbeat& heartbeat) {
  json.at("number").get_to(heartbeat.number);
}

void to_json(Json& json, const Leave& leave) {
  json = {{"signal", leave.signal}, {"reason", leave.reason}};
}
void from_json(const Json& json, Leave& leave) {
  json.at("signal").get_to(leave.signal);
  json.at("reason").get_to(leave.reason);
}

void to_json(Json& json, const Welcome& welcome) {
  json = {{"instance", welcome.instance},
          {"heartbeat_interval_ms", to_ms(welcome.heartbeat_interval)},
          {"agent_patience_ms", to_ms(welcome.agent_patience)},
          {"embedded", welcome.embedded},
          {"host", welcome.host}};
}
void from_json(const Json& json, Welcome& welcome) {
  json.at("instance").get_to(welcome.instance);
  welcome.heartbeat_interval = from_ms(json.at("heartbeat_interval_ms"));
  welcome.agent_patience = from_ms(json.at("agent_patience_ms"));
  json.at("embedded").get_to(welcome.embedded);
  json.at("host").get_to(welcome.host);
}

void to_json(Json& json, const Refused& refused) { json = {{"reason", refused.reason}}; }
void from_json(const Json& json, Refused& refused) { json.at("reason").get_to(refused.reason); }

void to_json(Json& json, const HeartbeatAck& ack) { json = {{"number", ack.number}}; }
void from_json(const Json& json, HeartbeatAck& ack) { json.at("number").get_to(ack.number); }

void to_json(Json& json, const Wait& wait) { json = {{"reason", wait.reason}}; }
void from_json(const Json& json, Wait& wait) { json.at("reason").get_to(wait.reason); }

void to_json(Json& json, const Assignment& assignment) {
  json = {{"generation", assignment.generation.value},
          {"node_rank", assignment.node_rank.value},
          {"node_count", assignment.node_count},
          {"first_rank", assignment.first_rank.value},
          {"world_size", assignment.world_size},
          {"store_host", assignment.store_host},
          {"store_port", assignment.store_port},
          {"restart_count", assignment.restart_count},
          {"reason", assignment.reason}};
}
void from_json(const Json& json, Assignment& assignment) {
  json.at("generation").get_to(assignment.generation.value);
  json.at("node_rank").get_to(assignment.node_rank.value);
  json.at("node_count").get_to(assignment.node_count);
  json.at("first_rank").get_to(assignment.first_rank.value);
  json.at("world_size").get_to(assignment.world_size);
  json.at("store_host").get_to(assignment.store_host);
  json.at("store_port").get_to(assignment.store_port);
  json.at("restart_count").get_to(assignment.restart_count);
  json.at("reason").get_to(assignment.reason);
}

void to_json(Json& json, const Stop& stop) {
  json = {{"generation", stop.generation.value}, {"reason", stop.reason}};
}
void from_json(const Json& json, Stop& stop) {
  json.at("generation").get_to(stop.generation.value);
  json.at("reason").get_to(stop.reason);
}

void to_json(Json& json, const Verdict& verdict) {
  json = {{"success", verdict.success},
          {"exit_code", verdict.exit_code},
          {"headline", verdict.headline},
          {"ends", verdict.ends},
          {"generation", verdict.generation.value},
          {"restarts_used", verdict.restarts_used},
          {"max_restarts", verdict.max_restarts}};
}
void from_json(const Json& json, Verdict& verdict) {
  json.at("success").get_to(verdict.success);
  json.at("exit_code").get_to(verdict.exit_code);
  json.at("headline").get_to(verdict.headline);
  json.at("ends").get_to(verdict.ends);
  json.at("generation").get_to(verdict.generation.value);
  json.at("restarts_used").get_to(verdict.restarts_used);
  json.at("max_restarts").get_to(verdict.max_restarts);
}

void to_json(Json& json, const End& end) { json = {{"verdict", end.verdict}}; }
void from_json(const Json& json, End& end) { json.at("verdict").get_to(end.verdict); }

namespace {

// The "type" of each alternative, in the order of the variants.
constexpr std::array<const char*, std::variant_size_v<AgentMessage>> kAgentTypes{
    "hello", "status", "heartbeat", "leave"};
constexpr std::array<const char*, std::variant_size_v<ServiceMessage>> kServiceTypes{
    "welcome", "refused", "heartbeat_ack", "wait", "assignment", "stop", "end"};

std::string frame(const Json& json) {
  // What workers wrote to stderr may be no UTF-8.
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  DDPRUN_ASSERT(text.size() <= kMaxControlFrameBytes, "a message fits into a frame");
  std::string bytes(kControlMagic);
  for (int shift = 0; shift < 32; shift += 8) {
    bytes += static_cast<char>((text.size() >> shift) & 0xff);
  }
  return bytes + text;
}

template <class Variant, class Types>
std::string encode_variant(const Variant& message, const Types& types) {
  Json json = std::visit([](const auto& alternative) { return Json(alternative); }, message);
  json["type"] = types[message.index()];
  return frame(json);
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
    return Error{
        .kind = ErrorKind::kProtocol, .doing = "read a control message", .cause = std::move(cause)};
  };
  try {
    const Json json = Json::parse(text);
    const std::string& type = json.at("type").get_ref<const std::string&>();
    for (std::size_t i = 0; i < types.size(); ++i) {
      if (type == types[i]) return decode_alternative<Variant>(i, json, types);
    }
    return bad("unknown type '" + type + "'");
  } catch (const Json::exception& exception) {
    return bad(exception.what());
  }
}

}  // namespace

std::string encode(const AgentMessage& message) { return encode_variant(message, kAgentTypes); }
std::string encode(const ServiceMessage& message) { return encode_variant(message, kServiceTypes); }

Result<AgentMessage> decode_agent_message(std::string_view json) {
  return decode_variant<AgentMessage>(json, kAgentTypes);
}
Result<ServiceMessage> decode_service_message(std::string_view json) {
  return decode_variant<ServiceMessage>(json, kServiceTypes);
}

Result<std::optional<std::string_view>> FrameReader::next() {
  buffer_.erase(0, std::exchange(consumed_, 0));
  const std::size_t known = std::min(buffer_.size(), kControlMagic.size());
  if (std::string_view(buffer_).substr(0, known) != kControlMagic.substr(0, known)) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "read a control frame",
                 .cause = "it does not begin with " + std::string(kControlMagic)};
  }
  if (buffer_.size() < kControlHeaderBytes) return std::optional<std::string_view>();
  std::size_t length = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    length |=
        static_cast<std::size_t>(static_cast<unsigned char>(buffer_[kControlMagic.size() + i]))
        << (8 * i);
  }
  if (length > kMaxControlFrameBytes) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "read a control frame",
                 .cause = std::to_string(length) + " bytes are more than the limit of " +
                          std::to_string(kMaxControlFrameBytes)};
  }
  if (buffer_.size() < kControlHeaderBytes + length) return std::optional<std::string_view>();
  consumed_ = kControlHeaderBytes + length;
  return std::optional(std::string_view(buffer_).substr(kControlHeaderBytes, length));
}

}  // namespace ddprun
