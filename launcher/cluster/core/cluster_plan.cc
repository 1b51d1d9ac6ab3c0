#include "launcher/cluster/core/cluster_plan.h"

#include <algorithm>

#include "base/concat.h"
#include "base/counted.h"
#include "launcher/cluster/core/detector.h"

namespace ddprun {
namespace {

// A scheduler that runs in the jobs of another one comes before it.
constexpr Detector kDetectors[] = {detect_mpi,       detect_slurm_step, detect_slurm_job,
                                   detect_batch_job, detect_cloud,      detect_pod};

// Takes the GPUs from the scheduler in whose job mpirun runs: mpirun says nothing of them. The
// tasks that this scheduler was asked for are not those of mpirun. In a job of LSF, blaunch starts
// the daemons of mpirun.
void take_gpus_of_job(ClusterPlan& plan, const EnvLookup& lookup) {
  const EnvLookup without_tasks = [&](std::string_view name) {
    constexpr std::string_view kHidden[] = {"SLURM_NTASKS", kTasksVariable, "LSF_PM_TASKID"};
    return std::ranges::count(kHidden, name) > 0 ? std::nullopt : lookup(name);
  };
  for (const Detector detect : kDetectors) {
    if (detect == detect_mpi) continue;
    const Result<std::optional<ClusterPlan>> job = detect(without_tasks);
    if (!job || !*job) continue;
    plan.workers = (*job)->workers;
    plan.workers_are = (*job)->workers_are;
    plan.counts_gpus = (*job)->counts_gpus;
    return;
  }
}

// Lets the plan be that of this node alone.
void leave_other_nodes(ClusterPlan& plan) {
  plan.nodes = plan.tasks = plan.own_tasks = 1;
  plan.node_rank = plan.local_task = 0;
  for (std::string* text :
       {&plan.nodes_remedy, &plan.endpoint_remedy, &plan.no_starter, &plan.node_file})
    text->clear();
  plan.node_count_command.clear();
}

}  // namespace

Result<std::optional<ClusterPlan>> detect_cluster(const EnvLookup& lookup, bool is_typed) {
  // A worker is not a task of the scheduler. A job that a worker submits has a step of its own.
  const std::optional<std::string> outer = lookup(kStepVariable);
  if (outer && *outer == slurm_step(lookup)) return std::nullopt;
  for (const Detector detect : kDetectors) {
    Result<std::optional<ClusterPlan>> found = detect(lookup);
    // A command that was typed is this node's alone.
    if (!found && is_typed) return std::nullopt;
    if (!found) return found;
    if (!*found) continue;
    ClusterPlan& plan = **found;
    if (plan.takes_gpus_of_job) take_gpus_of_job(plan, lookup);
    // The shell of salloc may be on another host.
    const bool is_of_salloc = detect == detect_slurm_job && !plan.no_starter.empty();
    if (is_typed && plan.starter.empty() && !is_of_salloc) leave_other_nodes(plan);
    if (plan.tasks > 1) {
      if (plan.workers && *plan.workers < plan.own_tasks && !plan.gpu_remedy.empty()) {
        return invalid_argument(concat("a task sees ", counted(*plan.workers, "GPU"),
                                       ", but its node has ", plan.own_tasks,
                                       " workers (all GPUs of its tasks: ", plan.gpu_remedy, ")"))
            .within(plan.name);
      }
      plan.workers = plan.own_tasks;
      plan.workers_are = "tasks of this node";
    }
    return found;
  }
  return std::nullopt;
}

std::string remark_on_cpus(const ClusterPlan& plan, int usable_cpus) {
  if (usable_cpus >= plan.cpus) return "";
  return concat(plan.name, ": workers may use ", usable_cpus, " of the ", plan.cpus,
                " CPUs that the job has on this node (all of them: ", plan.cpu_remedy, ")");
}

std::map<std::string, std::string> option_texts(const ClusterPlan& plan, Taken taken) {
  std::map<std::string, std::string> texts;
  if (taken == Taken::kStarter || taken == Taken::kWait) return texts;
  if (plan.workers) texts["nproc-per-node"] = std::to_string(*plan.workers);
  if (taken != Taken::kNodes) return texts;
  texts["nnodes"] = std::to_string(plan.nodes);
  if (plan.node_rank) texts["node-rank"] = std::to_string(*plan.node_rank);
  if (!plan.endpoint.host.empty()) texts["rdzv-endpoint"] = to_text(plan.endpoint);
  texts["rdzv-id"] = plan.job_id;
  return texts;
}

std::string to_sentence(const ClusterPlan& plan, int workers, Taken taken) {
  std::string text = plan.name + ": ";
  if (taken == Taken::kStarter) return text + counted(plan.nodes, "node");
  if (taken == Taken::kNodes && plan.node_rank) text += concat("node ", *plan.node_rank, " of ");
  if (taken == Taken::kNodes) {
    text += plan.node_rank ? std::to_string(plan.nodes) : counted(plan.nodes, "node");
    text += ", ";
  }
  if (taken == Taken::kOneNode) text += "one node, ";
  text += counted(workers, "worker");
  if (plan.workers == workers) text += " (" + plan.workers_are + ")";
  if (taken == Taken::kNodes && !plan.endpoint.host.empty())
    text += ", rendezvous at " + to_text(plan.endpoint);
  if (plan.attempt > 0) text += concat(", requeued ", counted(plan.attempt, "time"));
  return text;
}

}  // namespace ddprun
