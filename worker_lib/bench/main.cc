// The program ddprun-bench. See --help.

#include <cerrno>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/exit_codes.h"
#include "base/fail.h"
#include "base/version.h"
#include "rendezvous/net/tcp_address.h"
#include "worker_lib/bench/measure.h"
#include "worker_lib/cpu_group/solo_group.h"
#include "worker_lib/store/core/start_plan.h"
#include "worker_lib/store/world_store.h"

namespace ddprun {
namespace {

constexpr Duration kLeavePatience = std::chrono::seconds(5);

// Returns the report as a JSON object, in bytes and seconds. docs/how-to/bench.md names the fields.
std::string to_json_text(const BenchReport& report) {
  using nlohmann::json;
  json result = json::object();
  result["ranks"] = report.ranks;
  for (const BenchNode& node : report.nodes) {
    json& entry = result["nodes"].emplace_back(json::object());
    entry["host"] = node.host;
    entry["memory_bytes_per_s"] = node.memory_gbs * 1e9;
    if (node.gpu.gpus == 0) continue;
    entry["gpus"] = node.gpu.gpus;
    entry["gpu_memory_bytes_per_s"] = node.gpu.bytes_per_s;
    entry["gpu_multiplies_per_s"] = node.gpu.multiplies_per_s;
  }
  for (const auto& row : report.link_gbs) {
    json& of_node = result["link_bytes_per_s"].emplace_back(json::array());
    for (const double gbs : row) of_node.push_back(gbs * 1e9);
  }
  result["latency_s"] = report.latency_s;
  for (const BenchReduce& one : report.all_reduces) {
    json& entry = result["all_reduce"].emplace_back(json::object());
    entry["bytes"] = one.bytes;
    entry["seconds"] = one.seconds;
  }
  result["odd"] = odd_nodes(report);
  return result.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

// Measures in the world that the environment describes. Rank 0 prints the report.
Result<void> measure_and_print(const BenchOptions& options, const std::string& json_file) {
  const Result<StartPlan> plan = plan_start({}, environment_variable);
  if (!plan) return plan.error();
  const WorkerEnv& env = plan->env;
  std::ofstream file;
  if (env.rank.value == 0 && !json_file.empty()) {
    file.open(json_file);
    if (!file) return system_error("write " + json_file, errno);
  }
  std::unique_ptr<WorldStore> store;
  std::unique_ptr<CpuGroup> group = make_solo_group();
  if (plan->meet_at != MeetAt::kNowhere) {
    Result<std::unique_ptr<WorldStore>> found = WorldStore::open(
        {.plan = *plan, .given = nullptr, .local_address = {}, .timeout = options.timeout});
    if (!found) return found.error();
    store = std::move(*found);
    Result<std::unique_ptr<CpuGroup>> formed =
        CpuGroup::form(*store->store(), {.rank = env.rank,
                                         .world_size = env.world_size,
                                         .node_id = "node " + to_text(env.node_rank),
                                         .name = store->name(),
                                         .title = "",
                                         .page = {},
                                         .address = store->address(),
                                         .ports = env.ports,
                                         .node_silence = env.lease,
                                         .timeout = options.timeout});
    if (!formed) return formed.error();
    group = std::move(*formed);
    store->world_is_formed();
  }
  BenchReport report;
  const Result<void> measured = measure_nodes(*group, env, host_name(), options, report);
  if (env.rank.value == 0 && !report.nodes.empty()) {
    if (std::fputs(to_text(report).c_str(), stdout) < 0 || std::fflush(stdout) != 0)
      return system_error("write the report", errno);
    if (file.is_open()) {
      file << to_json_text(report);
      if (!file.flush()) return system_error("write " + json_file, errno);
    }
  }
  if (!measured) return measured;
  if (store) store->await_leave(kLeavePatience);
  return {};
}

int run(int argc, char** argv) {
  BenchOptions options;
  std::string json_file;
  int timeout_s = 60;
  CLI::App app(
      "Measures memory, GPUs, links and all_reduce of the nodes of a job, and names the odd ones.\n"
      "Start it with 'ddprun bench', one process on each node.");
  app.set_version_flag("--version", std::string("ddprun-bench ") + kVersion);
  app.add_option("--json", json_file, "rank 0 writes the figures into this file, too");
  app.add_option("--max-bytes", options.most_bytes, "the largest all_reduce is at most this large")
      ->check(CLI::Range(std::uint64_t{1} << 10, std::uint64_t{1} << 32));
  app.add_option("--timeout", timeout_s, "seconds that a call may take")
      ->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : to_int(ExitCode::kUsage);
  }
  options.timeout = std::chrono::seconds(timeout_s);
  const Result<void> measured = measure_and_print(options, json_file);
  if (measured) return 0;
  const ErrorKind kind = measured.error().kind;
  const bool is_of_group = kind == ErrorKind::kTimeout || kind == ErrorKind::kConnection ||
                           kind == ErrorKind::kProtocol || kind == ErrorKind::kPeerLost ||
                           kind == ErrorKind::kStopped;
  return fail("ddprun-bench", measured.error(),
              is_of_group ? ExitCode::kNoAnswer : usage_or(ExitCode::kFiles, measured.error()));
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) { return ddprun::run(argc, argv); }
