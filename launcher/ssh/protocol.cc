#include "launcher/ssh/protocol.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/concat.h"
#include "base/is_control.h"

namespace ddprun {
namespace {

using nlohmann::json;

constexpr std::size_t kMostPlanBytes = 16 << 20;

Error no_plan(std::string cause) {
  return Error{
      .kind = ErrorKind::kProtocol, .doing = "read the head's plan", .cause = std::move(cause)};
}

// Returns a text of the far end without characters that a terminal would obey.
std::string plain_text_of(const json& value) { return in_one_line(value.get<std::string>()); }

Duration duration_of(const json& value) {
  constexpr std::int64_t kMost = 1'000'000'000'000;  // 30 years
  if (value.is_number_float()) return {};
  return std::chrono::milliseconds(std::clamp<std::int64_t>(value.get<std::int64_t>(), 0, kMost));
}

int exit_code_of(const json& value) {
  if (value.is_number_float()) return 255;  // it may have no value as an integer
  return static_cast<int>(std::clamp<std::int64_t>(value.get<std::int64_t>(), 0, 255));
}

}  // namespace

std::string encode_plan(const NodePlan& plan) {
  json files = json::array();
  for (const CopiedFile& file : plan.files) files.push_back({file.path, file.mode, file.size});
  // CBOR takes texts of any bytes, as arguments and paths may have them.
  const std::vector<std::uint8_t> bytes = json::to_cbor({
      {"mark", plan.mark},
      {"key", plan.key},
      {"nodes", plan.nodes},
      {"node_rank", plan.node_rank},
      {"endpoint", plan.endpoint},
      {"peer", plan.peer},
      {"directory", plan.directory},
      {"environment", plan.environment},
      {"arguments", plan.arguments},
      {"local_addr", plan.local_addr},
      {"first_port", plan.ports.first},
      {"last_port", plan.ports.last},
      {"files", files},
  });
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(bytes.size() >> shift);
  return text.append(bytes.begin(), bytes.end());
}

Result<std::size_t> decode_plan_size(std::string_view bytes) {
  std::size_t size = 0;
  for (const char c : bytes) size = size << 8 | static_cast<unsigned char>(c);
  if (size <= kMostPlanBytes) return size;
  return no_plan(concat("it has ", size, " bytes (at most ", kMostPlanBytes, " are allowed)"));
}

Result<NodePlan> decode_plan(std::string_view bytes) {
  const json plan = json::from_cbor(bytes, true, false);
  NodePlan node;
  try {
    node.mark = plan.at("mark");
    node.key = plan.at("key");
    node.nodes = plan.at("nodes");
    node.node_rank = plan.at("node_rank");
    node.endpoint = plan.at("endpoint");
    node.peer = plan.at("peer");
    node.directory = plan.at("directory");
    node.environment = plan.at("environment");
    node.arguments = plan.at("arguments");
    node.local_addr = plan.at("local_addr");
    node.ports = {plan.at("first_port"), plan.at("last_port")};
    for (const json& file : plan.at("files"))
      node.files.push_back({file.at(0), file.at(1), file.at(2)});
  } catch (const json::exception& wrong) {
    return no_plan(wrong.what());
  }
  return node;
}

std::string control_line(std::string_view mark, const HeadEvent& event) {
  json text;
  if (const auto* greeted = std::get_if<Greeted>(&event)) {
    text["greeted"] = {greeted->version, greeted->program, greeted->address, greeted->machine};
  } else if (const auto* ready = std::get_if<Ready>(&event)) {
    text["ready"] = {ready->endpoint, to_ms(ready->grace)};
  } else if (const auto* refused = std::get_if<PlanRefused>(&event)) {
    text["refused"] = {refused->why, refused->exit_code};
  } else if (const auto* ended = std::get_if<AgentEnded>(&event)) {
    text["ended"] = ended->exit_code;
    if (!ended->report.empty()) text["report"] = ended->report;
  }
  // Bytes that are not UTF-8, of paths in errors, become U+FFFD.
  return concat(mark, " ", text.dump(-1, ' ', true, json::error_handler_t::replace), "\n");
}

std::optional<HeadEvent> parse_control(int host, std::string_view text) {
  const json event = json::parse(text, nullptr, false);
  try {
    if (event.contains("greeted")) {
      const json& greeted = event.at("greeted");
      // Other versions, which the head refuses, say less.
      return Greeted{host, plain_text_of(greeted.at(0)), plain_text_of(greeted.at(1)),
                     plain_text_of(greeted.at(2)),
                     greeted.size() > 3 ? plain_text_of(greeted.at(3)) : ""};
    }
    if (event.contains("ready")) {
      const json& ready = event.at("ready");
      return Ready{host, plain_text_of(ready.at(0)), duration_of(ready.at(1))};
    }
    if (event.contains("refused")) {
      const json& refused = event.at("refused");
      return PlanRefused{host, plain_text_of(refused.at(0)), exit_code_of(refused.at(1))};
    }
    if (event.contains("ended"))
      return AgentEnded{host, exit_code_of(event.at("ended")), event.value("report", "")};
  } catch (const json::exception&) {
  }
  return std::nullopt;
}

}  // namespace ddprun
