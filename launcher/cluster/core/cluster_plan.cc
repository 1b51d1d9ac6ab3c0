#include "launcher/cluster/core/cluster_plan.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "base/concat.h"
#include "base/counted.h"
#include "base/parse_number.h"
#include "base/split.h"
#include "launcher/cluster/core/node_list.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {
namespace {

using Detector = Result<std::optional<ClusterPlan>> (*)(const EnvLookup&);

// Returns the value of a variable that the scheduler must have set. `sign`: the variable by which
// the scheduler was recognised.
Result<std::string> needed(const EnvLookup& lookup, std::string_view name, std::string_view sign) {
  const std::optional<std::string> text = lookup(name);
  if (text && !text->empty()) return *text;
  return invalid_argument(
             concat("not set, although ", sign, " is set (--no-detect: take nothing from Slurm)"))
      .within(name);
}

Result<std::uint64_t> needed_number(const EnvLookup& lookup, std::string_view name,
                                    std::string_view sign) {
  const Result<std::string> text = needed(lookup, name, sign);
  if (!text) return text.error();
  const std::optional<std::uint64_t> number = parse_number<std::uint64_t>(*text);
  if (!number) return invalid_value(*text, "expected a number").within(name);
  return *number;
}

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

// --- Slurm --------------------------------------------------------------------------------------

// A process that srun started has SLURM_STEP_ID and SLURM_JOB_ID. A batch script and the shell of
// salloc have no step, or, with use_interactive_step, one of the special numbers at the end of 32
// bits. Variables of the job are not used: srun may run on a part of its nodes. Source: srun(1),
// "OUTPUT ENVIRONMENT VARIABLES"; slurm/slurm.h, SLURM_INTERACTIVE_STEP.
constexpr std::uint64_t kFirstSpecialStep = 0xffff'fff0;

// Ports below those that the kernel gives to outgoing connections. Jobs with close numbers run at
// the same time, and so do steps of a job.
constexpr std::uint64_t kFirstPort = 20000;
constexpr std::uint64_t kPorts = 10000;
constexpr std::uint64_t kStepsApart = 7919;

// Returns the number of GPUs that this node's task may use. The step has them all;
// CUDA_VISIBLE_DEVICES may have been set to fewer by hand. SLURM_GPUS_ON_NODE is that of the job if
// the step has none.
std::optional<int> gpus_of_step(const EnvLookup& lookup) {
  const std::string granted = lookup("SLURM_STEP_GPUS").value_or("");
  if (granted.empty()) return std::nullopt;
  int count = count_devices(granted);
  if (const std::optional<std::string> visible = lookup("CUDA_VISIBLE_DEVICES")) {
    const int seen = visible->empty() ? 0 : static_cast<int>(split(*visible, ',').size());
    count = std::min(count, seen);
  }
  return count > 0 ? std::optional(count) : std::nullopt;
}

Result<std::optional<ClusterPlan>> detect_slurm_step(const EnvLookup& lookup) {
  constexpr const char* kSign = "SLURM_STEP_ID";
  if (slurm_step(lookup).empty()) return std::nullopt;
  const Result<std::uint64_t> step = needed_number(lookup, kSign, kSign);
  if (!step) return step.error();
  if (*step >= kFirstSpecialStep) return std::nullopt;
  const Result<std::uint64_t> job = needed_number(lookup, "SLURM_JOB_ID", kSign);
  if (!job) return job.error();

  constexpr const char* kNodeList = "SLURM_STEP_NODELIST";
  const Result<std::string> list = needed(lookup, kNodeList, kSign);
  if (!list) return list.error();
  const Result<std::vector<std::string>> nodes = expand_node_list(*list);
  if (!nodes) return Error(nodes.error()).within(kNodeList);

  const Result<std::uint64_t> node_rank = needed_number(lookup, "SLURM_NODEID", kSign);
  if (!node_rank) return node_rank.error();
  if (*node_rank >= nodes->size()) {
    return invalid_value(std::to_string(*node_rank),
                         concat("expected less than ", nodes->size(), ", the number of nodes in ",
                                kNodeList, "=", *list))
        .within("SLURM_NODEID");
  }

  // A batch script that was submitted in a step has old variables of that step.
  const std::string here = lookup("SLURMD_NODENAME").value_or("");
  if (!here.empty() && here != (*nodes)[*node_rank]) return std::nullopt;

  constexpr const char* kTasks = "SLURM_STEP_TASKS_PER_NODE";
  const Result<std::string> tasks_list = needed(lookup, kTasks, kSign);
  if (!tasks_list) return tasks_list.error();
  const Result<std::vector<int>> tasks = expand_counts(*tasks_list);
  if (!tasks) return Error(tasks.error()).within(kTasks);
  if (tasks->size() != nodes->size()) {
    return invalid_value(*tasks_list,
                         concat("expected ", nodes->size(), " counts, as many as nodes in ",
                                kNodeList, "=", *list))
        .within(kTasks);
  }

  ClusterPlan plan;
  plan.job_id = slurm_step(lookup);
  plan.name = concat("Slurm step ", plan.job_id);
  plan.nodes = static_cast<int>(nodes->size());
  plan.node_rank = static_cast<int>(*node_rank);
  const std::uint64_t port = kFirstPort + (*job % kPorts + *step % kPorts * kStepsApart) % kPorts;
  plan.endpoint = {nodes->front(), static_cast<std::uint16_t>(port)};
  plan.tasks = *std::ranges::max_element(*tasks);
  plan.remedy = "srun --ntasks-per-node=1";
  plan.gpus = gpus_of_step(lookup);
  return plan;
}

constexpr Detector kDetectors[] = {detect_slurm_step};

}  // namespace

std::string slurm_step(const EnvLookup& lookup) {
  const std::string job = lookup("SLURM_JOB_ID").value_or("");
  const std::string step = lookup("SLURM_STEP_ID").value_or("");
  return job.empty() || step.empty() ? "" : job + "." + step;
}

Result<std::optional<ClusterPlan>> detect_cluster(const EnvLookup& lookup, bool is_typed) {
  // A worker is no task of the scheduler. A job that a worker submits has a step of its own.
  const std::optional<std::string> outer = lookup(kStepVariable);
  if (outer && *outer == slurm_step(lookup)) return std::nullopt;
  // mpirun starts its daemons by srun, and its processes inherit their variables.
  if (lookup("OMPI_COMM_WORLD_SIZE")) return std::nullopt;
  for (const Detector detect : kDetectors) {
    Result<std::optional<ClusterPlan>> found = detect(lookup);
    if (!found) return found;
    if (!*found) continue;
    if (is_typed) {
      ClusterPlan& plan = **found;
      plan.nodes = plan.tasks = 1;
      plan.node_rank = 0;
    }
    return found;
  }
  return std::nullopt;
}

std::map<std::string, std::string> option_texts(const ClusterPlan& plan, Taken taken) {
  std::map<std::string, std::string> texts;
  if (plan.gpus) texts["nproc-per-node"] = std::to_string(*plan.gpus);
  if (taken != Taken::kNodes) return texts;
  texts["nnodes"] = std::to_string(plan.nodes);
  texts["node-rank"] = std::to_string(plan.node_rank);
  texts["rdzv-endpoint"] = to_text(plan.endpoint);
  texts["rdzv-id"] = plan.job_id;
  return texts;
}

std::string to_sentence(const ClusterPlan& plan, int workers, Taken taken) {
  std::string text = plan.name + ": ";
  if (taken == Taken::kNodes) text += concat("node ", plan.node_rank, " of ", plan.nodes, ", ");
  if (taken == Taken::kOneNode) text += "one node, ";
  text += counted(workers, "worker");
  if (plan.gpus == workers) text += " (GPUs of the step)";
  if (taken == Taken::kNodes) text += ", rendezvous at " + to_text(plan.endpoint);
  return text;
}

}  // namespace ddprun
