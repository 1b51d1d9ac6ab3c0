#include <algorithm>
#include <cstddef>
#include <string_view>

#include "base/concat.h"
#include "base/parse_number.h"
#include "base/split.h"
#include "launcher/cluster/core/detector.h"
#include "launcher/cluster/core/node_list.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {
namespace {

// Counts the devices of SLURM_STEP_GPUS: "0,1", or "0-3".
int count_devices(std::string_view text) {
  int count = 0;
  for (const std::string_view part : split(text, ',')) {
    const std::size_t dash = part.find('-');
    const std::optional<int> first = parse_number<int>(part.substr(0, dash));
    const std::optional<int> last =
        dash == part.npos ? std::nullopt : parse_number<int>(part.substr(dash + 1));
    const bool is_range = first && last && *first <= *last;
    count += is_range ? std::min(*last - *first, kMaxSlots) + 1 : 1;
  }
  return count;
}

// A process that srun started has SLURM_STEP_ID and SLURM_JOB_ID. A batch script and the shell of
// salloc have no step, or, with use_interactive_step, one of the special numbers at the end of 32
// bits. Variables of the job are not used: srun may run on a part of its nodes. Source: srun(1),
// "OUTPUT ENVIRONMENT VARIABLES"; slurm/slurm.h, SLURM_INTERACTIVE_STEP.
constexpr std::uint64_t kFirstSpecialStep = 0xffff'fff0;

// Jobs with close numbers run at the same time, and so do steps of a job. So their ports are far
// apart.
constexpr std::uint64_t kStepsApart = 7919;

constexpr const char* kJob = "SLURM_JOB_ID";
constexpr const char* kStepId = "SLURM_STEP_ID";
constexpr const char* kMunge = "munge";  // runs on all nodes of most clusters

// Returns how many of the granted GPUs are visible: CUDA_VISIBLE_DEVICES may have been set to fewer
// by hand.
std::optional<int> visible_of(int granted, const EnvLookup& lookup) {
  int count = granted;
  if (const std::optional<std::string> visible = lookup("CUDA_VISIBLE_DEVICES")) {
    const int seen = visible->empty() ? 0 : static_cast<int>(split(*visible, ',').size());
    count = std::min(count, seen);
  }
  return count > 0 ? std::optional(count) : std::nullopt;
}

// SLURM_GPUS_ON_NODE is that of the job if the step has none.
std::optional<int> gpus_of_step(const EnvLookup& lookup) {
  const std::string granted = lookup("SLURM_STEP_GPUS").value_or("");
  return granted.empty() ? std::nullopt : visible_of(count_devices(granted), lookup);
}

// Returns how many tasks of `text`, such as "8(x2),4", are on this node. nullopt: it does not say,
// or no node has several.
std::optional<int> tasks_of_node(const std::string& text, std::size_t nodes,
                                 std::size_t node_rank) {
  const Result<std::vector<int>> tasks = expand_counts(text);
  if (!tasks || tasks->size() != nodes || std::ranges::max(*tasks) < 2) return std::nullopt;
  return (*tasks)[node_rank];
}

// Returns the names in `list`, the value of the variable `name`.
Result<std::vector<std::string>> nodes_of(const std::string& list, std::string_view name) {
  Result<std::vector<std::string>> nodes = expand_node_list(list);
  if (!nodes) return std::move(nodes).error().within(name);
  return nodes;
}

// srun starts one ddprun on each node, and it may use all CPUs. The ddpruns themselves decide what
// becomes of the others if one ends.
std::vector<std::string> srun_on(std::size_t nodes, const EnvLookup& lookup) {
  const std::string count = std::to_string(nodes);
  std::vector<std::string> command;
  // srun takes these from the batch script, for its one task on each node. Source: srun(1), "INPUT
  // ENVIRONMENT VARIABLES".
  for (const char* name : {"SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK",
                           "SLURM_TRES_PER_TASK", "SLURM_NTASKS_PER_GPU", "SLURM_GPU_BIND"}) {
    if (!lookup(name)) continue;
    if (command.empty()) command.push_back("env");
    command.insert(command.end(), {"-u", name});
  }
  command.insert(command.end(),
                 {"srun", "--nodes=" + count, "--ntasks=" + count, "--ntasks-per-node=1",
                  "--cpu-bind=none", "--export=ALL", "--kill-on-bad-exit=0", "--wait=0"});
  return command;
}

// SlurmStep: the step of srun in which this process runs.
struct SlurmStep {
  std::uint64_t job = 0;
  std::uint64_t number = 0;
  std::vector<std::string> nodes;
  std::size_t node_rank = 0;           // below the number of nodes
  std::vector<int> tasks;              // of each node
  std::vector<std::string> job_nodes;  // empty: not known
};

// Reads the variables of a step. nullopt: this process is not in a step. Fails if a variable is
// missing or wrong.
Result<std::optional<SlurmStep>> read_step(const EnvLookup& lookup) {
  if (lookup(kStepId).value_or("").empty() || lookup(kJob).value_or("").empty())
    return std::nullopt;
  const Result<std::uint64_t> step = needed_number(lookup, kStepId, kStepId);
  if (!step) return step.error();
  if (*step >= kFirstSpecialStep) return std::nullopt;
  const Result<std::uint64_t> job = needed_number(lookup, kJob, kStepId);
  if (!job) return job.error();

  constexpr const char* kNodeList = "SLURM_STEP_NODELIST";
  const Result<std::string> list = needed(lookup, kNodeList, kStepId);
  if (!list) return list.error();
  const Result<std::vector<std::string>> nodes = nodes_of(*list, kNodeList);
  if (!nodes) return nodes.error();

  const Result<std::uint64_t> node_rank = needed_number(lookup, "SLURM_NODEID", kStepId);
  if (!node_rank) return node_rank.error();
  if (*node_rank >= nodes->size()) {
    return invalid_value(std::to_string(*node_rank),
                         concat("expected less than ", nodes->size(), ", the number of nodes in ",
                                kNodeList, "=", *list))
        .within("SLURM_NODEID");
  }

  // A batch script that was submitted in a step, and a shell of salloc there, have old variables of
  // that step. The job's list of a heterogeneous job has only one component.
  const std::string& node = (*nodes)[*node_rank];
  const std::string here = lookup("SLURMD_NODENAME").value_or("");
  if (!here.empty() && here != node) return std::nullopt;
  const auto of_job = expand_node_list(lookup("SLURM_JOB_NODELIST").value_or(""));
  if (of_job && !lookup("SLURM_HET_SIZE") && std::ranges::count(*of_job, node) == 0)
    return std::nullopt;

  constexpr const char* kTasks = "SLURM_STEP_TASKS_PER_NODE";
  const Result<std::string> tasks_list = needed(lookup, kTasks, kStepId);
  if (!tasks_list) return tasks_list.error();
  const Result<std::vector<int>> tasks = expand_counts(*tasks_list);
  if (!tasks) return Error(tasks.error()).within(kTasks);
  if (tasks->size() != nodes->size()) {
    return invalid_value(*tasks_list,
                         concat("expected ", nodes->size(), " counts, as many as nodes in ",
                                kNodeList, "=", *list))
        .within(kTasks);
  }
  return SlurmStep{.job = *job,
                   .number = *step,
                   .nodes = *nodes,
                   .node_rank = static_cast<std::size_t>(*node_rank),
                   .tasks = *tasks,
                   .job_nodes = of_job ? *of_job : std::vector<std::string>()};
}

}  // namespace

std::string slurm_step(const EnvLookup& lookup) {
  const std::string job = lookup(kJob).value_or("");
  const std::string step = lookup(kStepId).value_or("");
  return job.empty() || step.empty() ? job : job + "." + step;
}

int requeues_in_slurm(const EnvLookup& lookup) {
  return parse_number<int>(lookup("SLURM_RESTART_COUNT").value_or("")).value_or(0);
}

// Source: slurmstepd.c, which sets its title to the job and the step. Seen with Slurm 22.05. The
// components of a heterogeneous job have numbers of their own.
std::vector<std::string> inherited_variables(const EnvLookup& lookup, std::string_view manager) {
  const std::size_t begin = std::min(manager.find('['), manager.size());
  const std::size_t dot = manager.find('.', begin);
  const std::size_t end = manager.find(']', begin);
  if (dot == manager.npos || end == manager.npos || end < dot || lookup("SLURM_HET_SIZE"))
    return {};
  const std::string_view job = manager.substr(begin + 1, dot - begin - 1);
  const std::string_view step = manager.substr(dot + 1, end - dot - 1);
  if (!parse_number<std::uint64_t>(job)) return {};
  if (job != lookup(kJob).value_or("")) return {kStepId, "SLURMD_NODENAME"};
  const bool is_other = step == "batch" || parse_number<std::uint64_t>(step);
  if (is_other && step != lookup(kStepId).value_or("")) return {kStepId};
  return {};
}

Result<std::optional<ClusterPlan>> detect_slurm_step(const EnvLookup& lookup) {
  const Result<std::optional<SlurmStep>> found = read_step(lookup);
  if (!found) return found.error();
  if (!*found) return std::nullopt;
  const SlurmStep& step = **found;
  const std::size_t nodes = step.nodes.size();
  ClusterPlan plan;
  plan.job_id = slurm_step(lookup);
  plan.name = concat("Slurm step ", plan.job_id);
  plan.attempt = requeues_in_slurm(lookup);
  plan.auth = kMunge;
  plan.nodes = static_cast<int>(nodes);
  plan.node_rank = static_cast<int>(step.node_rank);
  meet_near(plan, step.nodes.front(),
            numbered_port(step.job % kPorts + step.number % kPorts * kStepsApart));
  plan.tasks = std::ranges::max(step.tasks);
  plan.own_tasks = step.tasks[step.node_rank];
  plan.remedy = "srun --ntasks-per-node=1";
  plan.workers = gpus_of_step(lookup);
  plan.workers_are = "GPUs of the step";
  // Several tasks of the step are counted by themselves.
  if (!plan.workers && plan.tasks == 1) {
    plan.workers = tasks_of_node(lookup(kTasksVariable).value_or(""), nodes, step.node_rank);
    plan.workers_are = "tasks of the job";
  }
  plan.cpus = parse_number<int>(lookup("SLURM_CPUS_ON_NODE").value_or("")).value_or(0);
  plan.cpu_remedy = "srun --cpu-bind=none";
  // srun --exact gives a step fewer CPUs than the job has. With --cpus-per-task the user wants
  // that.
  const auto job_cpus = expand_counts(lookup("SLURM_JOB_CPUS_PER_NODE").value_or(""));
  const std::vector<std::string>& of_job = step.job_nodes;
  if (job_cpus && of_job.size() == job_cpus->size() && !lookup("SLURM_CPUS_PER_TASK")) {
    const auto place = std::ranges::find(of_job, step.nodes[step.node_rank]) - of_job.begin();
    const int cpus =
        place < std::ssize(*job_cpus) ? (*job_cpus)[static_cast<std::size_t>(place)] : 0;
    if (plan.cpus > 0 && cpus > plan.cpus) {
      plan.cpus = cpus;
      plan.cpu_remedy = concat("srun --cpus-per-task=", cpus / plan.tasks);
    }
  }
  plan.gpu_remedy = "srun --gpu-bind=none";
  if (plan.tasks == 1) return plan;
  const Result<std::uint64_t> local_task = needed_number(lookup, "SLURM_LOCALID", kStepId);
  if (!local_task) return local_task.error();
  plan.local_task = static_cast<int>(std::min<std::uint64_t>(*local_task, kMaxSlots));
  return plan;
}

// A batch script runs on the first node of its job, and the shell of salloc where salloc was typed,
// or, with use_interactive_step, on the first node. SLURMD_NODENAME is set only on nodes of the
// job.
Result<std::optional<ClusterPlan>> detect_slurm_job(const EnvLookup& lookup) {
  constexpr const char* kNodeList = "SLURM_JOB_NODELIST";
  const std::string job = lookup(kJob).value_or("");
  const std::string list = lookup(kNodeList).value_or("");
  const int components = parse_number<int>(lookup("SLURM_HET_SIZE").value_or("")).value_or(1);
  if (job.empty() || (list.empty() && components < 2)) return std::nullopt;
  // torchrun started it in the batch script.
  if (is_worker(lookup) && !lookup(kStepVariable)) return std::nullopt;
  if (!parse_number<std::uint64_t>(job))
    return invalid_value(job, "expected a number").within(kJob);
  const Result<std::vector<std::string>> nodes = nodes_of(list, kNodeList);
  if (!nodes && components < 2) return nodes.error();
  // salloc may have been typed on a node of another job.
  std::string here = lookup("SLURMD_NODENAME").value_or("");
  if (nodes && components < 2 && std::ranges::count(*nodes, here) == 0) here.clear();
  const bool is_first = !nodes || nodes->empty() || here == nodes->front();
  if (!here.empty() && !is_first) return std::nullopt;  // a shell on another node

  ClusterPlan plan;
  plan.job_id = job;
  plan.name = "Slurm job " + job;
  plan.attempt = requeues_in_slurm(lookup);
  plan.auth = kMunge;
  plan.nodes = nodes ? static_cast<int>(nodes->size()) : components;
  if (!here.empty()) {
    const std::optional<int> granted = parse_number<int>(lookup("SLURM_GPUS_ON_NODE").value_or(""));
    if (granted) plan.workers = visible_of(*granted, lookup);
    plan.workers_are = "GPUs of the job";
  }
  // The variables have the nodes of each component, and srun uses only the first one if it is not
  // told. Seen with Slurm 22.05.
  if (components > 1) {
    plan.no_starter =
        concat("it has ", components, " components: start ddprun on the nodes of all, `srun ",
               "--het-group=0-", components - 1, " --ntasks-per-node=1 --kill-on-bad-exit=0 ",
               "--wait=0 ddprun ...` (for this node alone, add --nnodes=1)");
    return plan;
  }
  if (plan.nodes > 1 || here.empty()) plan.starter = srun_on(nodes->size(), lookup);
  // Slurm counts tasks without being asked, too. Then SLURM_NTASKS is not set.
  const std::string asked =
      lookup("SLURM_NTASKS") ? lookup("SLURM_TASKS_PER_NODE").value_or("") : "";
  const std::optional<int> tasks = tasks_of_node(asked, nodes->size(), 0);
  if (!tasks) return plan;
  // The nodes of the step may have GPUs, even if this host has none.
  plan.starter_variables = {concat(kTasksVariable, "=", asked)};
  if (plan.workers) return plan;
  plan.workers = tasks;
  plan.workers_are = "tasks of the job";
  return plan;
}

}  // namespace ddprun
