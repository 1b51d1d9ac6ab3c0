#include <algorithm>
#include <string_view>

#include "base/concat.h"
#include "base/parse_number.h"
#include "base/split.h"
#include "launcher/cluster/core/detector.h"

namespace ddprun {
namespace {

// Returns the text after `"key":` in a JSON text. Empty: there is none. Quotes within strings are
// escaped, so that their words are not taken for keys.
std::string_view after_key(std::string_view json, std::string_view key) {
  const std::string quoted = concat("\"", key, "\"");
  for (std::size_t at = json.find(quoted); at != json.npos; at = json.find(quoted)) {
    json.remove_prefix(at + quoted.size());
    const std::size_t colon = json.find_first_not_of(" \t\r\n");
    if (colon != json.npos && json[colon] == ':') return json.substr(colon + 1);
  }
  return {};
}

// Returns the string after `"key":`.
std::string_view string_after(std::string_view json, std::string_view key) {
  std::string_view rest = after_key(json, key);
  rest.remove_prefix(std::min(rest.find('"'), rest.size()));
  return rest.empty() ? rest : rest.substr(1, rest.find('"', 1) - 1);
}

// Returns the strings of the JSON list at the begin of the text.
std::vector<std::string> strings_of(std::string_view json) {
  std::vector<std::string> strings;
  const std::vector<std::string_view> parts = split(json.substr(0, json.find(']')), '"');
  for (std::size_t i = 1; i < parts.size(); i += 2) strings.emplace_back(parts[i]);
  return strings;
}

// Returns the plan of a node in a list of hosts that begins with node rank 0.
ClusterPlan plan_of(const std::string& name, const std::string& job_id,
                    const std::vector<std::string>& hosts, std::size_t node_rank,
                    std::uint16_t port) {
  ClusterPlan plan;
  plan.name = concat(name, " ", job_id);
  plan.job_id = job_id;
  plan.nodes = static_cast<int>(hosts.size());
  plan.node_rank = static_cast<int>(node_rank);
  plan.endpoint = {hosts.front(), port};
  return plan;
}

Result<void> take_gpus(ClusterPlan& plan, const EnvLookup& lookup, const char* name,
                       const char* sign) {
  if (!lookup(name)) return {};
  const Result<std::uint64_t> gpus = needed_number(lookup, name, sign);
  if (!gpus) return gpus.error();
  constexpr std::uint64_t kMost = 1024;
  if (*gpus > kMost)
    return invalid_value(std::to_string(*gpus), "expected a number of GPUs").within(name);
  if (*gpus > 0) plan.workers = static_cast<int>(*gpus);
  plan.workers_are = "GPUs of the node";
  return {};
}

// SageMaker: SM_HOSTS='["algo-1","algo-2"]' is sorted. The containers share no ports. Source:
// sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md.
Result<std::optional<ClusterPlan>> detect_sagemaker(const EnvLookup& lookup) {
  constexpr const char* kHosts = "SM_HOSTS";
  constexpr const char* kHere = "SM_CURRENT_HOST";
  const std::string text = lookup(kHosts).value_or("");
  if (text.empty()) return std::nullopt;
  const std::vector<std::string> hosts = strings_of(text);
  if (hosts.empty() || !text.starts_with('['))
    return invalid_value(text, "expected hosts, such as [\"algo-1\",\"algo-2\"]").within(kHosts);
  const Result<std::string> here = needed(lookup, kHere, kHosts);
  if (!here) return here.error();
  const auto found = std::ranges::find(hosts, *here);
  if (found == hosts.end()) {
    return invalid_value(*here, concat("expected one of ", kHosts, "=", text)).within(kHere);
  }
  const std::string about = lookup("SM_TRAINING_ENV").value_or("");
  const std::string_view job = string_after(about, "job_name");
  ClusterPlan plan = plan_of("SageMaker job", job.empty() ? kDefaultJobId : std::string(job), hosts,
                             static_cast<std::size_t>(found - hosts.begin()), kDefaultMasterPort);
  if (Result<void> taken = take_gpus(plan, lookup, "SM_NUM_GPUS", kHosts); !taken)
    return taken.error();
  return plan;
}

// SkyPilot: its nodes may be machines that several tasks share. Source: SkyPilot, "Using
// Environment Variables", "Environment variables for run".
Result<std::optional<ClusterPlan>> detect_skypilot(const EnvLookup& lookup) {
  constexpr const char* kHosts = "SKYPILOT_NODE_IPS";
  constexpr const char* kSign = "SKYPILOT_NODE_RANK";
  if (lookup(kSign).value_or("").empty()) return std::nullopt;
  const Result<std::string> text = needed(lookup, kHosts, kSign);
  if (!text) return text.error();
  std::vector<std::string> hosts;
  for (const std::string_view line : split(*text, '\n')) {
    if (!line.empty()) hosts.emplace_back(line);
  }
  if (hosts.empty()) return invalid_value(*text, "expected one address a line").within(kHosts);
  const Result<int> node_rank =
      needed_index(lookup, kSign, kSign, static_cast<int>(hosts.size()), kHosts);
  if (!node_rank) return node_rank.error();
  const Result<std::string> job_id = needed(lookup, "SKYPILOT_TASK_ID", kSign);
  if (!job_id) return job_id.error();
  ClusterPlan plan = plan_of("SkyPilot task", *job_id, hosts, static_cast<std::size_t>(*node_rank),
                             port_of(*job_id));
  meet_near(plan, plan.endpoint.host, plan.endpoint.port);
  if (Result<void> taken = take_gpus(plan, lookup, "SKYPILOT_NUM_GPUS_PER_NODE", kSign); !taken)
    return taken.error();
  return plan;
}

// Vertex AI: the nodes are those of worker pools 0 and 1. The replicas of other pools do not train.
// Only the ports in CLUSTER_SPEC are open between replicas. Source: Vertex AI, "Distributed
// training", "The format of CLUSTER_SPEC".
Result<std::optional<ClusterPlan>> detect_vertex(const EnvLookup& lookup) {
  constexpr const char* kSpec = "CLUSTER_SPEC";
  const std::string text = lookup(kSpec).value_or("");
  std::vector<std::string> hosts = strings_of(after_key(text, "workerpool0"));
  if (hosts.empty() || string_after(text, "environment") != "cloud") return std::nullopt;
  const std::size_t in_first_pool = hosts.size();
  for (const std::string& host : strings_of(after_key(text, "workerpool1"))) hosts.push_back(host);

  const std::string_view task = after_key(text, "task");
  const std::string_view pool = string_after(task, "type");
  if (!pool.empty() && pool != "workerpool0" && pool != "workerpool1") return std::nullopt;
  std::string_view index = after_key(task, "index");
  index.remove_prefix(std::min(index.find_first_of("0123456789"), index.size()));
  std::optional<std::size_t> node_rank =
      parse_number<std::size_t>(index.substr(0, index.find_first_not_of("0123456789")));
  if (node_rank && pool == "workerpool1") *node_rank += in_first_pool;
  const Result<HostPort> first = parse_host_port(hosts.front());
  if (pool.empty() || !node_rank || *node_rank >= hosts.size() || !first) {
    return invalid_value(text, "expected the pools of workers, and the task with type and index")
        .within(kSpec);
  }
  ClusterPlan plan = plan_of("Vertex AI job", first->host, hosts, *node_rank, first->port);
  plan.endpoint = *first;  // the host without its port
  return plan;
}

// Azure ML with the distribution PyTorch. Source: Azure Machine Learning, "Distributed GPU training
// guide". AZUREML_NODE_COUNT is not in that guide, but Microsoft's own packages read it.
constexpr NodeVariables kAzure{"Azure ML job",  "AZUREML_NODE_COUNT", "AZUREML_NODE_COUNT",
                               "NODE_RANK",     "MASTER_ADDR",        "MASTER_PORT",
                               "AZUREML_RUN_ID"};

Result<std::optional<ClusterPlan>> detect_azure(const EnvLookup& lookup) {
  if (!lookup("NODE_RANK")) return std::nullopt;  // the job has no distribution
  Result<std::optional<ClusterPlan>> plan = plan_from(kAzure, lookup);
  if (!plan || !*plan) return plan;
  const Result<int> size = needed_count(lookup, "WORLD_SIZE", kAzure.sign);
  if (!size) return size.error();
  const int tasks = *size / (*plan)->nodes;
  if (tasks < 2) return plan;
  const Result<int> local = needed_index(lookup, "LOCAL_RANK", kAzure.sign, tasks, "WORLD_SIZE");
  if (!local) return local.error();
  (*plan)->tasks = (*plan)->own_tasks = tasks;
  (*plan)->local_task = *local;
  (*plan)->remedy = "process_count_per_instance: 1 and";
  return plan;
}

}  // namespace

Result<std::optional<ClusterPlan>> detect_cloud(const EnvLookup& lookup) {
  if (is_worker(lookup)) return std::nullopt;
  for (const Detector detect : {detect_skypilot, detect_sagemaker, detect_vertex, detect_azure}) {
    Result<std::optional<ClusterPlan>> plan = detect(lookup);
    if (!plan || *plan) return plan;
  }
  return std::nullopt;
}

}  // namespace ddprun
