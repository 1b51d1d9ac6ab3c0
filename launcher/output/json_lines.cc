#include "launcher/output/json_lines.h"

#include <time.h>

#include <nlohmann/json.hpp>

#include "base/base64.h"
#include "base/utf8.h"

namespace ddprun {
namespace {

// Returns the current time as RFC 3339 has it, in UTC, to the microsecond.
std::string wall_time() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char date[32];
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  const std::string micros = std::to_string(now.tv_nsec / 1000);
  return std::string(date) + "." + std::string(6 - micros.size(), '0') + micros + "Z";
}

nlohmann::ordered_json beginning(const std::string& job, const std::string& host, int node,
                                 std::int64_t generation) {
  nlohmann::ordered_json json{{"time", wall_time()}, {"job", job}, {"host", host}};
  if (generation >= 0) {
    json["node"] = node;
    json["generation"] = generation;
  }
  return json;
}

std::string line_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string JsonLines::own_line(LogLevel level, std::string_view text) const {
  nlohmann::ordered_json json = beginning(job_, host_, node_, generation_);
  json["level"] = enum_name(kLogLevelWords, level);
  json["message"] = text;
  return line_of(json);
}

std::string JsonLines::worker_line(const Origin& origin, std::string_view line) const {
  nlohmann::ordered_json json = beginning(job_, host_, node_, generation_);
  json["rank"] = origin.rank.value;
  json["local_rank"] = origin.local_rank.value;
  json["stream"] = origin.is_err ? "stderr" : "stdout";
  json["line"] = line;
  if (!is_utf8(line)) json["base64"] = to_base64(line);
  if (origin.cut) json["partial"] = true;
  return line_of(json);
}

}  // namespace ddprun
