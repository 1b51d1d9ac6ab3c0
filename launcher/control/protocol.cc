#include "launcher/control/protocol.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/hex.h"
#include "base/is_control.h"
#include "rendezvous/http/status_page.h"
#include "rendezvous/protocol/json_fields.h"
#include "rendezvous/protocol/rank_json.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

constexpr int kControlSocketProtocol = 1;
constexpr std::string_view kWho = "who";
constexpr std::size_t kMaxByBytes = 256;
constexpr int kMaxSignal = 64;

// Lists the fields of a request that follow "what".
template <class F>
void fields_of(F& at, Of<F, UserRequest>& request) {
  at.optional("by", true, request.by);
  at.optional("signal", request.signal != 0, request.signal, Bounds{0, kMaxSignal});
  at.optional("rank", request.rank, kCount);
  at.optional("at_once", request.at_once, request.at_once);
  at.optional("follow", request.follow, request.follow);
  const bool is_logs = request.what == UserRequest::What::kLogs;
  at.optional("lines", is_logs, request.lines, Bounds{0, kMaxLogLines});
}

std::string shown(std::string text) { return clipped(in_one_line(std::move(text)), kMaxByBytes); }

void put_time(Json& json, const std::string& key, const Moment& now, TimePoint when) {
  json[key] = calendar_text(now, when);
  json[key + "_ms_ago"] = to_ms(now.boot - when);
}

Json json_of(const WorkerView& worker, const Moment& now) {
  Json json{{"rank", worker.rank.value},
            {"local_rank", worker.local_rank.value},
            {"pid", worker.pid},
            {"state", worker.state}};
  put_time(json, "since", now, worker.since);
  if (worker.step) json["step"] = *worker.step;
  return json;
}

Json json_of(const NodeView& node, const Moment& now) {
  Json json{{"job", node.job},
            {"host", node.host},
            {"pid", node.pid},
            {"program", node.program},
            {"phase", enum_name(kAgentPhaseWords, node.phase)},
            {"generation", node.generation.value},
            {"max_restarts", node.max_restarts},
            {"grace_ms", to_ms(node.grace)}};
  put_time(json, "started", now, node.started);
  if (node.generation_since) put_time(json, "generation_since", now, *node.generation_since);
  if (!node.meets.empty()) json["meets"] = node.meets;
  if (!node.log_directory.empty()) json["log_directory"] = node.log_directory;
  if (const std::optional<Assignment>& part = node.assignment) {
    json["node_rank"] = part->node_rank.value;
    json["node_count"] = part->node_count;
    json["world_size"] = part->world_size;
    json["restarts_used"] = part->restart_count;
    json["reason"] = part->reason;
  }
  Json& workers = json["workers"] = Json::array();
  for (const WorkerView& worker : node.workers) workers.push_back(json_of(worker, now));
  return json;
}

// Returns what is known about each rank of the node.
Json ranks_of(const NodeView& node) {
  RankPlace place{.host = node.host, .foremost_step = foremost_step(node.ranks)};
  if (node.assignment) {
    place.node = node.assignment->node_rank;
    place.restarts = node.assignment->restart_count;
  }
  Json ranks = Json::array();
  for (const RankRow& row : node.ranks) ranks.push_back(rank_json(row, place));
  return ranks;
}

Json answer(Outcome outcome) {
  return {{"version", kControlSocketProtocol}, {"ok", outcome == Outcome::kDone}};
}

}  // namespace

std::string request_line(const UserRequest& request) {
  Json json{{"version", kControlSocketProtocol},
            {"what", enum_name(kUserRequestWords, request.what)}};
  FieldWriter at(json);
  fields_of(at, request);
  return text_of(json);
}

std::string who_request_line(const std::string& by) {
  return text_of({{"version", kControlSocketProtocol}, {"what", kWho}, {"by", by}});
}

Result<std::optional<UserRequest>> parse_request(std::string_view line) {
  try {
    const Json json = Json::parse(line);
    if (!json.is_object()) return invalid_argument("the request is not a JSON object");
    FieldReader at(json);
    int version = 0;
    at.optional("version", true, version, kCount);
    if (version != kControlSocketProtocol) {
      return Error{.kind = ErrorKind::kUnsupported,
                   .cause = "this ddprun speaks version " + std::to_string(kControlSocketProtocol) +
                            " on its socket, the request has version " + std::to_string(version)};
    }
    UserRequest request;
    const bool is_who = json.at("what") == kWho;
    if (!is_who) request.what = value_in(kUserRequestWords, json.at("what"));
    fields_of(at, request);
    request.by = request.by.empty() ? "a user" : shown(std::move(request.by));
    if (request.what == UserRequest::What::kSignal && request.signal == 0) {
      return invalid_argument("the request has no signal");
    }
    return is_who ? std::nullopt : std::optional(std::move(request));
  } catch (const Json::exception& error) {
    return invalid_argument("invalid request: " + shown(error.what()));
  }
}

std::string who_line(const NodeView& node, const Moment& now) {
  Json json = answer(Outcome::kDone);
  json["node"] = json_of(node, now);
  return text_of(json);
}

std::string status_line(const NodeView& node, const Moment& now, const Result<std::string>& page) {
  Json json = answer(Outcome::kDone);
  json["node"] = json_of(node, now);
  json["node"]["ranks"] = ranks_of(node);
  if (!page) json["service_silent"] = page.error().message();
  std::string line = text_of(json);
  if (!page) return line;
  // The page has line ends only between its elements, so they can become spaces.
  std::string one_line = *page;
  std::ranges::replace(one_line, '\n', ' ');
  line.pop_back();
  return line + ",\"service\":" + one_line + "}";
}

std::string outcome_line(Outcome outcome, std::string_view text) {
  Json json = answer(outcome);
  json["text"] = std::string(text);
  return text_of(json);
}

std::string ended_line(int exit_code, std::string_view text) {
  return text_of({{"ended", true}, {"exit_code", exit_code}, {"text", std::string(text)}});
}

std::string output_line(const OutputSource& source, std::string_view bytes) {
  Json json{{"rank", source.rank.value},
            {"stream", source.stream == OutputStream::kOut ? "stdout" : "stderr"}};
  try {
    Json text = std::string(bytes);
    static_cast<void>(text.dump());  // throws for invalid UTF-8
    json["text"] = std::move(text);
  } catch (const Json::exception&) {
    json["hex"] =
        to_hex(std::span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
  }
  return text_of(json);
}

std::string stack_line(const WorkerSnapshot& worker) {
  Json json{{"rank", worker.rank.value},
            {"host", worker.host},
            {"pid", worker.pid},
            {"doing", worker.doing},
            {"is_stopped", worker.is_stopped},
            {"frames", worker.frames}};
  if (worker.step) json["step"] = *worker.step;
  if (!worker.call.empty()) {
    json["call"] = worker.call;
    json["waited_ms"] =
        std::chrono::duration_cast<std::chrono::milliseconds>(worker.waited).count();
  }
  return text_of(json);
}

std::string missing_line(std::string_view what, std::string_view why) {
  return text_of({{"missing", concat(what, ": ", why)}});
}

std::string generation_line(const NodeView& node) {
  Json json{{"generation", node.generation.value}};
  if (node.assignment) json["world_size"] = node.assignment->world_size;
  return text_of(json);
}

std::string dropped_line(std::uint64_t bytes) { return text_of({{"dropped_bytes", bytes}}); }

}  // namespace ddprun
