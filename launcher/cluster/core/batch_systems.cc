#include <algorithm>
#include <string_view>

#include "base/concat.h"
#include "base/parse_number.h"
#include "base/split.h"
#include "launcher/cluster/core/detector.h"

namespace ddprun {
namespace {

ClusterPlan one_node_plan(const std::string& name, const std::string& job_id,
                          const EnvLookup& lookup) {
  ClusterPlan plan;
  plan.name = concat(name, " ", job_id);
  plan.job_id = job_id;
  // Torque sets it to the GPUs of the job. Source: Torque, start_exec.c.
  plan.workers = listed_gpus(lookup, "CUDA_VISIBLE_DEVICES");
  plan.workers_are = "visible GPUs";
  return plan;
}

// NodeStarter: the words of a shell around "ddprun ..." that start it once on each node.
struct NodeStarter {
  const char* before;
  const char* after;
  const char* job_id;  // an option. Jobs may share their first node, and its port.
};

// pbsdsh gives its tasks neither PATH nor directory.
constexpr NodeStarter kTorque = {"pbsdsh -u sh -lc \"cd $PBS_O_WORKDIR; ", "\"",
                                 " --rdzv-id=$PBS_JOBID"};
constexpr NodeStarter kPbsPro = {"pbsdsh -- sh -lc \"cd $PBS_O_WORKDIR; ", "\"",
                                 " --rdzv-id=$PBS_JOBID"};
// A task of flux run has a job id.
constexpr NodeStarter kFlux = {"flux run -N $(flux getattr size) --tasks-per-node=1 ", "", ""};
constexpr NodeStarter kGridEngine = {
    "for h in $(cut -d' ' -f1 $PE_HOSTFILE); do qrsh -inherit -V $h ", " & done; wait",
    " --rdzv-id=$JOB_ID.$SGE_TASK_ID"};

constexpr std::string_view kFluxSize = "flux getattr size";  // prints the number of nodes

// BatchSystem: says how many nodes a job has, but neither their names nor which of them this is.
struct BatchSystem {
  const char* name;
  const char* sign;
  const char* job_id;
  const char* nodes;
  NodeStarter starter;
};

// Torque: PBS Pro and OpenPBS do not set PBS_NUM_NODES. Source: Torque, start_exec.c; pbsdsh(1).
// Grid Engine: SGE_TASK_ID is "undefined" in a job that is not an array. Source: Son of Grid
// Engine, exec_job.c; submit(1), "ENVIRONMENTAL VARIABLES".
constexpr BatchSystem kSystems[] = {
    {"PBS job", "PBS_NUM_NODES", "PBS_JOBID", "PBS_NUM_NODES", kTorque},
    {"Grid Engine job", "SGE_TASK_ID", "JOB_ID", "NHOSTS", kGridEngine},
};

std::string describe(const NodeStarter& starter, int nodes, std::string_view hint = "") {
  return concat("it has ", nodes, " nodes: start ddprun on each of them, `", starter.before,
                "ddprun --nnodes=", nodes, " --rdzv-endpoint=$(hostname):29400", starter.job_id,
                " ...", starter.after, "`", hint, " (for this node alone, add --nnodes=1)");
}

// A batch script runs on one node, and nothing starts ddprun on the others.
Result<std::optional<ClusterPlan>> plan_of(const BatchSystem& system, const EnvLookup& lookup) {
  const Result<std::string> job_id = needed(lookup, system.job_id, system.sign);
  if (!job_id) return job_id.error();
  const Result<int> nodes = needed_count(lookup, system.nodes, system.sign);
  if (!nodes) return nodes.error();
  ClusterPlan plan = one_node_plan(system.name, *job_id, lookup);
  plan.nodes = *nodes;
  if (*nodes > 1) plan.no_starter = describe(system.starter, *nodes);
  return plan;
}

// PBS Pro and OpenPBS say the nodes in a file only. Flux says them in no variable of a batch script
// or shell; a task of flux run is found by detect_mpi(). Source: qsub(1B) of OpenPBS, "Environment
// variables"; flux-environment(7).
std::optional<ClusterPlan> detect_uncounted(const EnvLookup& lookup) {
  const std::string pbs = lookup("PBS_JOBID").value_or("");
  const std::string file = lookup("PBS_NODEFILE").value_or("");
  if (!pbs.empty() && !file.empty()) {
    ClusterPlan plan = one_node_plan("PBS job", pbs, lookup);
    plan.node_file = file;
    return plan;
  }
  const std::string flux = lookup("FLUX_ENCLOSING_ID").value_or("");
  if (flux.empty()) return std::nullopt;
  ClusterPlan plan = one_node_plan("Flux job", flux, lookup);
  for (const std::string_view word : split(kFluxSize, ' '))
    plan.node_count_command.emplace_back(word);
  return plan;
}

struct Slots {
  std::string host;
  int count = 0;
};

// Reads "hostA 1 hostB 1".
Result<std::vector<Slots>> read_slots(const std::string& text, const char* name) {
  std::vector<std::string_view> words = split(std::string_view(text), ' ');
  std::erase(words, "");
  std::vector<Slots> slots;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    const std::optional<int> count = parse_number<int>(words[i + 1]);
    if (words[i].empty() || !count || *count < 1) break;
    slots.push_back({std::string(words[i]), *count});
  }
  if (slots.empty() || slots.size() * 2 != words.size())
    return invalid_value(text, "expected hosts and slots, such as hostA 1 hostB 1").within(name);
  return slots;
}

// LSF: blaunch counts its tasks from 1, in the order of LSB_MCPU_HOSTS. A batch script has no
// LSF_PM_TASKID. Source: IBM Spectrum LSF, "Environment variables set for job execution"; Open MPI,
// ess_lsf_module.c.
Result<std::optional<ClusterPlan>> detect_lsf(const EnvLookup& lookup) {
  constexpr const char* kSign = "LSB_JOBID";
  constexpr const char* kHosts = "LSB_MCPU_HOSTS";
  constexpr const char* kTask = "LSF_PM_TASKID";
  constexpr const char* kStarted = "DDPRUN_STARTED_BY_BLAUNCH";
  std::string job_id = lookup(kSign).value_or("");
  // The tasks of jsrun are not counted by LSF.
  if (job_id.empty() || lookup("JSM_NAMESPACE_RANK")) return std::nullopt;
  const std::string index = lookup("LSB_JOBINDEX").value_or("0");
  if (index != "0") job_id += concat("[", index, "]");
  const Result<std::string> text = needed(lookup, kHosts, kSign);
  if (!text) return text.error();
  const Result<std::vector<Slots>> hosts = read_slots(*text, kHosts);
  if (!hosts) return hosts.error();
  ClusterPlan plan = one_node_plan("LSF job", job_id, lookup);
  plan.nodes = static_cast<int>(hosts->size());
  if (plan.nodes == 1) return plan;

  if (lookup(kTask).value_or("").empty()) {
    if (lookup(kStarted)) {  // each host would start all hosts again
      return invalid_argument(concat("blaunch started this ddprun without ", kTask,
                                     ": give ddprun on each host --no-detect, --nnodes, ",
                                     "--node-rank, --rdzv-id=NAME and --rdzv-endpoint=HOST:PORT"))
          .within(plan.name);
    }
    // blaunch -z starts one task on each host, whatever its slots. Its tasks are told so. Source:
    // IBM Spectrum LSF, blaunch(8).
    std::string names;
    std::string own_slots = kHosts;
    for (const Slots& slots : *hosts) {
      names += concat(names.empty() ? "" : " ", slots.host);
      own_slots += concat(own_slots == kHosts ? "=" : " ", slots.host, " 1");
    }
    plan.starter = {"blaunch", "-z", names};
    plan.starter_variables = {own_slots, concat(kStarted, "=1")};
    plan.starter_is_srun = false;
    return plan;
  }
  for (const Slots& slots : *hosts) {
    if (slots.count == 1) continue;
    return invalid_argument(concat("blaunch starts ", slots.count, " tasks on ", slots.host,
                                   ", but one ddprun starts all workers of a host: call ddprun ",
                                   "without blaunch, and it starts itself on each host"))
        .within(plan.name);
  }
  const Result<int> task = needed_count(lookup, kTask, kSign);
  if (!task) return task.error();
  if (*task > plan.nodes) {
    return invalid_value(std::to_string(*task),
                         concat("expected at most ", plan.nodes, ", the number of hosts in ",
                                kHosts, "=", *text))
        .within(kTask);
  }
  plan.node_rank = *task - 1;
  meet_near(plan, hosts->front().host, port_of(plan.job_id));
  return plan;
}

}  // namespace

Result<std::optional<ClusterPlan>> detect_batch_job(const EnvLookup& lookup) {
  if (is_worker(lookup)) return std::nullopt;
  for (const BatchSystem& system : kSystems) {
    if (!lookup(system.sign).value_or("").empty()) return plan_of(system, lookup);
  }
  if (std::optional<ClusterPlan> plan = detect_uncounted(lookup)) return plan;
  return detect_lsf(lookup);
}

void count_nodes(ClusterPlan& plan, std::string_view answer) {
  std::vector<std::string_view> lines = split(answer, '\n');
  std::erase(lines, "");
  const std::size_t slots = lines.size();
  std::ranges::sort(lines);
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  const bool is_pbs = !plan.node_file.empty();
  const int hosts = static_cast<int>(lines.size());
  const int nodes = is_pbs ? hosts : hosts == 1 ? parse_number<int>(lines.front()).value_or(0) : 0;
  if (nodes < 1) {
    plan.nodes_remedy =
        concat("give --nnodes, --rdzv-id=NAME and --rdzv-endpoint=HOST:PORT, because ",
               is_pbs ? plan.node_file : kFluxSize, " does not say how many ",
               "nodes the job has (for this node alone, add --nnodes=1)");
    return;
  }
  plan.nodes = nodes;
  if (nodes == 1) return;
  // pbsdsh starts a task for each slot.
  const bool is_packed = is_pbs && slots > lines.size();
  const char* const hint = !is_pbs     ? "; with GPUs, add --gpus-per-node=N to flux run"
                           : is_packed ? ", with one slot on each, `qsub -l place=scatter`"
                                       : "";
  plan.no_starter = describe(is_pbs ? kPbsPro : kFlux, nodes, hint);
}

}  // namespace ddprun
