#include "launcher/main/dry_run.h"

#include <map>

#include "base/counted.h"
#include "base/printed.h"
#include "launcher/plan/core/worker_plan.h"
#include "launcher/plan/job_plan.h"
#include "launcher/process/core/shell_words.h"

namespace ddprun {
namespace {

std::string rendezvous_of(const AgentConfig& config) {
  using enum Rendezvous::Mode;
  const Rendezvous& plan = config.rendezvous;
  switch (plan.mode) {
    case kLocal: return "none: the job has one node";
    case kDynamic: return "at " + services_text(plan);
    case kEtcd: return "on the node that is elected at " + services_text(plan);
    case kStatic: return "at " + to_text(plan.endpoint) + ", where node rank 0 serves everything";
  }
  return "";
}

// Returns how the nodes prove who they are.
std::string authentication_of(const AgentConfig& config) {
  if (!config.keys.empty()) return "key";
  if (config.munge.munge) return "munge";
  const TlsFiles& files = config.tls_files;
  if (config.tls && !files.cert.empty() && files.has_authority()) return "certificates";
  return "none: anyone who reaches the rendezvous can join";
}

std::string nodes_of(const NodeRange& nodes) {
  if (nodes.min == nodes.max) return counted(nodes.max, "node");
  return std::to_string(nodes.min) + " to " + counted(nodes.max, "node");
}

std::string log_directory_of(const AgentConfig& config) {
  const std::string& wanted = config.options.log_dir;
  if (wanted == "/dev/null") return "";
  if (wanted.empty()) return "<temporary directory>/attempt_0";
  return wanted + "/" + config.options.rdzv_id + "_<random>/attempt_0";
}

Assignment first_assignment(const AgentConfig& config) {
  const LaunchOptions& options = config.options;
  Assignment first;
  first.node_rank = NodeRank(options.node_rank.value_or(0));
  first.node_count = options.nodes.max;
  first.first_rank = Rank(first.node_rank.value * config.slots);
  first.world_size = first.node_count * config.slots;
  first.lease = options.times.lease;
  return first;
}

// Returns where the store will be, as far as it is known before the job starts.
std::map<std::string, std::string> known_at_start(const AgentConfig& config) {
  using enum Rendezvous::Mode;
  const Rendezvous& plan = config.rendezvous;
  switch (plan.mode) {
    case kLocal: return {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "<chosen at the start>"}};
    case kEtcd:
    case kDynamic:
      return {{"MASTER_ADDR", "<address of node rank 0>"},
              {"MASTER_PORT", "<chosen at the start>"}};
    case kStatic:
      return {{"MASTER_ADDR", plan.endpoint.host},
              {"MASTER_PORT", std::to_string(plan.endpoint.port)}};
  }
  return {};
}

// Describes what workers get in addition to their variables. Lists only what differs from a run
// without options.
std::string environment_text(const AgentConfig& config) {
  const LaunchOptions& options = config.options;
  std::string text;
  if (!options.directory.empty()) text += "directory: " + options.directory + "\n";
  if (options.file_mask) text += printed("umask: %03o\n", *options.file_mask);
  if (options.pty) text += "terminal: each worker has one\n";
  if (options.passes_stdin) text += "standard input: rank 0 reads that of ddprun\n";
  const std::string logs = log_directory_of(config);
  const bool has_logs = options.redirects.asks_for_any() || options.tee.asks_for_any();
  if (has_logs && !logs.empty()) text += "log files: in " + logs + "\n";
  return text;
}

}  // namespace

std::string dry_run_text(const AgentConfig& config) {
  const LaunchOptions& options = config.options;
  std::string text;
  if (!config.cluster.empty()) text += "ddprun: " + config.cluster + "\n";
  for (const std::string& remark : config.rendezvous.remarks) text += "remark: " + remark + "\n";
  text += "job: '" + options.rdzv_id + "', " + nodes_of(options.nodes) + ", " +
          counted(config.slots, "worker") + " on this one, " +
          counted(options.max_restarts, "restart") + " at most\n";
  text += "meets: " + rendezvous_of(config) + "\n";
  if (!config.rendezvous.is_local()) text += "authentication: " + authentication_of(config) + "\n";
  text += "runs: " + in_shell_words(config.command.executable);
  for (const std::string& argument : config.command.arguments) {
    text += " " + in_shell_words(argument);
  }
  text += "\n" + environment_text(config);
  if (options.nodes.max > 1 && !options.node_rank) {
    text += "node rank: assigned by the service; 0 is shown\n";
  }
  const std::map<std::string, std::string> known = known_at_start(config);
  const PlanOptions plan = plan_options(config, log_directory_of(config));
  for (const WorkerPlan& worker : plan_workers(plan, first_assignment(config))) {
    text += "\nworker with local rank " + to_text(worker.local_rank);
    if (!worker.cpus.empty()) text += ", on CPUs " + to_text(worker.cpus);
    text += "\n";
    for (const auto& [name, value] : worker.variables) {
      const auto at_start = known.find(name);
      text += "  " + name + "=" + (at_start == known.end() ? value : at_start->second) + "\n";
    }
    text += "  DDPRUN_SUBMISSION=<made at the start>\n";
    text += "  DDPRUN_WORKER_PAGE=<made at the start>\n";
  }
  return text;
}

}  // namespace ddprun
