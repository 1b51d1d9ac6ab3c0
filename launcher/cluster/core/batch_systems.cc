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

// BatchSystem: says how many nodes a job has, but neither their names nor which of them this is.
struct BatchSystem {
  const char* name;
  const char* sign;
  const char* job_id;
  const char* nodes;
  const char* starter;  // starts one process on each node
};

// Torque: PBS Pro and OpenPBS do not set PBS_NUM_NODES. Source: Torque, start_exec.c; pbsdsh(1).
// Grid Engine: SGE_TASK_ID is "undefined" in a job that is no array. Source: Son of Grid Engine,
// exec_job.c; submit(1), "ENVIRONMENTAL VARIABLES".
constexpr BatchSystem kSystems[] = {
    {"PBS job", "PBS_NUM_NODES", "PBS_JOBID", "PBS_NUM_NODES", "pbsdsh -u"},
    {"Grid Engine job", "SGE_TASK_ID", "JOB_ID", "NHOSTS", "qrsh -inherit -V HOST"},
};

// A batch script runs on one node, and nothing starts ddprun on the others.
Result<std::optional<ClusterPlan>> plan_of(const BatchSystem& system, const EnvLookup& lookup) {
  const Result<std::string> job_id = needed(lookup, system.job_id, system.sign);
  if (!job_id) return job_id.error();
  const Result<int> nodes = needed_count(lookup, system.nodes, system.sign);
  if (!nodes) return nodes.error();
  ClusterPlan plan = one_node_plan(system.name, *job_id, lookup);
  if (*nodes == 1) return plan;
  return invalid_argument(concat("it has ", *nodes, " nodes: start ddprun on each of them, `",
                                 system.starter, " ddprun --nnodes=", *nodes,
                                 " --rdzv-endpoint=$(hostname):29400 ...` (--nnodes=1: only this ",
                                 "node)"))
      .within(plan.name);
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
    return invalid_argument(concat("it has ", plan.nodes, " hosts: start ddprun on each of them, ",
                                   "`blaunch ddprun ...` (--nnodes=1: only this host)"))
        .within(plan.name);
  }
  for (const Slots& slots : *hosts) {
    if (slots.count == 1) continue;
    return invalid_argument(concat("blaunch starts ", slots.count, " tasks on ", slots.host,
                                   ", but one ddprun starts all workers of a host: bsub -n ",
                                   plan.nodes, " -R 'span[ptile=1]'"))
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
  return detect_lsf(lookup);
}

}  // namespace ddprun
