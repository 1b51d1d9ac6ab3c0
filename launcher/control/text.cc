#include "launcher/control/text.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/counted.h"
#include "base/is_control.h"
#include "base/seconds.h"
#include "launcher/control/json_fields.h"
#include "launcher/options/core/table_text.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;
using Rows = std::vector<std::vector<std::string>>;

constexpr auto text = text_field;
constexpr auto list = list_field;

std::int64_t number(const Json& json, const char* key, std::int64_t otherwise) {
  return integer_field(json, key).value_or(otherwise);
}

std::string digits(const Json& json, const char* key) {
  return std::to_string(number(json, key, 0));
}

// Converts "2026-11-21T18:50:00.123Z" to "2026-11-21 18:50:00 UTC".
std::string moment(const Json& json, const std::string& key) {
  std::string time = text(json, key.c_str());
  if (time.size() != 24) return time;
  time[10] = ' ';
  return time.substr(0, 19) + " UTC";
}

// Returns text such as "since 2026-11-21 18:50:00 UTC (12.5 min)".
std::string since(const Json& json, const std::string& key) {
  const std::string when = moment(json, key);
  const std::int64_t ms = number(json, (key + "_ms_ago").c_str(), -1);
  if (when.empty()) return "";
  return "since " + when +
         (ms < 0 ? "" : " (" + to_text(Duration(std::chrono::milliseconds(ms))) + ")");
}

std::string ranks_of(const Json& node) {
  if (!node.contains("first_rank")) return "no ranks";
  const std::string first = digits(node, "first_rank");
  const std::string last = digits(node, "last_rank");
  return first == last ? "rank " + first : "ranks " + first + "-" + last;
}

// progress: of its ranks, as text; empty: not known.
std::string job_text(const Json& job, const std::string& progress) {
  const std::int64_t generation = number(job, "generation", -1);
  std::string all = "job '" + text(job, "id") + "': " + text(job, "phase");
  if (generation >= 0) all += ", generation " + std::to_string(generation);
  all += "\n";
  const std::string known = since(job, "since");
  if (!known.empty()) all += "  known " + known + "\n";
  if (generation >= 0) {
    const std::string formed = since(job, "generation_since");
    if (!formed.empty()) all += "  generation " + std::to_string(generation) + " " + formed + "\n";
  }
  all += "  restarts: " + digits(job, "restarts_used") + " of " + digits(job, "max_restarts") +
         " used\n";
  if (!progress.empty()) all += "  " + progress + "\n";
  // In the first minute, the shares of an undisturbed job say nothing.
  constexpr std::int64_t kShownFromMs = 60'000;
  if (const auto times = job.find("times");
      times != job.end() && times->is_object() &&
      (number(*times, "wall_ms", 0) >= kShownFromMs || number(*times, "restarts", 0) > 0)) {
    all += "  " + text(*times, "what") + "\n";
  }
  Rows nodes;
  for (const Json& node : list(job, "nodes")) {
    const bool has_place = node.contains("node_rank");
    const std::int64_t silent = number(node, "silent_ms", 0);
    const std::string unfit = text(node, "unfit");
    const std::string no_place = !unfit.empty() ? "unfit" : generation < 0 ? "waiting" : "spare";
    nodes.push_back({has_place ? "node " + digits(node, "node_rank") : no_place, text(node, "host"),
                     ranks_of(node), text(node, "phase"),
                     node.value("connected", true)
                         ? (unfit.empty() ? text(node, "log_trouble") : unfit)
                         : "silent for " + to_text(Duration(std::chrono::milliseconds(silent)))});
  }
  all += table_text(nodes, "  ");
  const std::int64_t left_out = number(job, "nodes_left_out", 0);
  if (left_out > 0) all += "  ... and " + std::to_string(left_out) + " more\n";
  return all;
}

std::string verdicts_text(const Json& job) {
  std::string all;
  if (!list(job, "failures").empty()) all += "failures so far:\n";
  for (const Json& failure : list(job, "failures")) {
    all += "  generation " + digits(failure, "generation") + ", " + moment(failure, "time") + ": " +
           text(failure, "what") + "\n";
    for (const Json& first : list(failure, "first")) {
      if (!first.is_object()) continue;
      if (&first != &list(failure, "first").front()) {
        all += "    or, at about the same time: " + text(first, "what") + "\n";
      }
      const std::string kind = text(first, "kind");
      const std::string said = text(first, "message");
      if (!said.empty() && kind != "node_lost" && kind != "lease_lost" && kind != "node_unfit") {
        all += "    its message: " + said + "\n";
      }
      for (const Json& line : list(first, "stderr")) {
        if (line.is_string()) all += "    | " + in_one_line(line.get<std::string>()) + "\n";
      }
      if (!text(first, "hint").empty()) all += "    hint: " + text(first, "hint") + "\n";
    }
  }
  const auto verdict = job.find("verdict");
  if (verdict != job.end() && verdict->is_object()) {
    all += "ended with exit code " + digits(*verdict, "exit_code") + ": " +
           text(*verdict, "headline") + "\n";
  }
  return all;
}

std::string agent_text(const Json& agent) {
  std::string all = "on this host: ddprun " + digits(agent, "pid");
  if (agent.contains("node_rank")) all += ", node " + digits(agent, "node_rank");
  for (const std::string& known : {text(agent, "phase"), since(agent, "started")}) {
    if (!known.empty()) all += ", " + known;
  }
  all += "\n";
  if (!text(agent, "log_directory").empty()) {
    all += "  log files in " + text(agent, "log_directory") + "\n";
  }
  Rows workers;
  for (const Json& worker : list(agent, "workers")) {
    std::string slow;
    for (const Json& rank : list(agent, "ranks")) {
      if (number(rank, "rank", -1) == number(worker, "rank", -2)) slow = text(rank, "slow");
    }
    workers.push_back({"rank " + digits(worker, "rank"),
                       "local rank " + digits(worker, "local_rank"), "pid " + digits(worker, "pid"),
                       text(worker, "state"), since(worker, "since"),
                       slow.empty() ? "" : "slow: " + slow});
  }
  return all + table_text(workers, "  ");
}

}  // namespace

Progress progress_of(const Json& picture) {
  const Json& job = object_field(picture, "job");
  const Json& agents = list(picture, "agents");
  Progress progress;
  const auto see = [&progress](const Json& rank) {
    const std::optional<std::int64_t> step = integer_field(rank, "step");
    if (!step || (progress.step && *step < *progress.step)) return;
    if (step != progress.step) progress = {.step = step};
    if (const auto total = integer_field(rank, "total_steps")) progress.total_steps = total;
    if (const auto rate = number_field(rank, "steps_per_second")) progress.steps_per_second = rate;
    if (const auto left = integer_field(rank, "left_s")) {
      progress.left = std::chrono::seconds(std::clamp<std::int64_t>(*left, 0, kMaxTime / 1s));
    }
  };
  for (const Json& rank : list(job, "ranks")) see(rank);
  for (const Json& agent : agents) {
    // Older agents describe their workers only.
    for (const Json& rank : list(agent, agent.contains("ranks") ? "ranks" : "workers")) see(rank);
  }
  const Json& of_phase = job.empty() && !agents.empty() ? agents.front() : job;
  if (text(of_phase, "phase") != "running") progress.left.reset();
  return progress;
}

std::string status_text(const Json& picture) {
  std::string all;
  const auto job = picture.find("job");
  const bool is_known = job != picture.end() && job->is_object();
  const Json& agents = list(picture, "agents");
  if (is_known) {
    all += job_text(*job, progress_text(progress_of(picture)));
  } else if (!agents.empty()) {
    const Json& agent = agents.front();
    all += "job '" + text(agent, "job") +
           "', as known to this node: " + text(picture, "service_silent") + "\n";
    all += "  generation " + digits(agent, "generation") + " " + since(agent, "generation_since") +
           "\n";
  }
  for (const Json& agent : agents) all += agent_text(agent);
  if (is_known) all += verdicts_text(*job);
  return all;
}

std::string list_text(const std::vector<Json>& agents) {
  Rows rows;
  for (const Json& agent : agents) {
    rows.push_back({"job '" + text(agent, "job") + "'", "ddprun " + digits(agent, "pid"),
                    agent.contains("silent")
                        ? text(agent, "silent")
                        : text(agent, "phase") + ", generation " + digits(agent, "generation"),
                    since(agent, "started"), text(agent, "program")});
  }
  return table_text(rows, "  ");
}

std::string service_list_text(const Json& page) {
  Rows rows;
  for (const Json& job : list(page, "jobs")) {
    const auto verdict = job.find("verdict");
    const std::int64_t nodes =
        static_cast<std::int64_t>(list(job, "nodes").size()) + number(job, "nodes_left_out", 0);
    rows.push_back({"job '" + text(job, "id") + "'", text(job, "phase"),
                    "generation " + std::to_string(number(job, "generation", -1)),
                    counted(nodes, "node"),
                    verdict != job.end() && verdict->is_object() ? text(*verdict, "headline")
                                                                 : since(job, "generation_since")});
  }
  const std::int64_t left_out = number(page, "jobs_left_out", 0);
  return (rows.empty() ? "no jobs\n" : table_text(rows)) +
         (left_out > 0 ? "... and " + std::to_string(left_out) + " more\n" : "");
}

}  // namespace ddprun
