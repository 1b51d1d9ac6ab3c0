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
             concat("it is not set, but ", sign, " is; with --no-detect it is not needed"))
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

// Ports below those that the kernel gives to outgoing connections. Steps of a job follow each
// other, and jobs with close numbers run at the same time.
constexpr std::uint64_t kFirstPort = 20000;
constexpr std::uint64_t kPorts = 10000;
constexpr std::uint64_t kStepsApart = 16;

Result<std::optional<ClusterPlan>> detect_slurm_step(const EnvLookup& lookup) {
  constexpr const char* kSign = "SLURM_STEP_ID";
  if (lookup(kSign).value_or("").empty() || lookup("SLURM_JOB_ID").value_or("").empty()) {
    return std::nullopt;
  }
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
  plan.job_id = concat(*job, ".", *step);
  plan.name = concat("Slurm step ", plan.job_id);
  plan.nodes = static_cast<int>(nodes->size());
  plan.node_rank = static_cast<int>(*node_rank);
  plan.endpoint = {
      nodes->front(),
      static_cast<std::uint16_t>(kFirstPort + (*job % kPorts * kStepsApart + *step) % kPorts)};
  plan.tasks = (*tasks)[*node_rank];
  plan.remedy = "srun --ntasks-per-node=1";
  // SLURM_GPUS_ON_NODE is that of the job if the step has no GPUs.
  if (const std::optional<std::string> gpus = lookup("SLURM_STEP_GPUS"); gpus && !gpus->empty()) {
    plan.gpus = count_devices(*gpus);
  }
  return plan;
}

constexpr Detector kDetectors[] = {detect_slurm_step};

}  // namespace

Result<std::optional<ClusterPlan>> detect_cluster(const EnvLookup& lookup) {
  // A worker inherits the scheduler's variables, but is no task of the scheduler.
  if (lookup("TORCHELASTIC_RUN_ID")) return std::nullopt;
  for (const Detector detect : kDetectors) {
    Result<std::optional<ClusterPlan>> plan = detect(lookup);
    if (!plan || *plan) return plan;
  }
  return std::nullopt;
}

std::map<std::string, std::string> option_texts(const ClusterPlan& plan) {
  std::map<std::string, std::string> texts;
  if (plan.gpus) texts["nproc-per-node"] = std::to_string(*plan.gpus);
  if (plan.nodes == 1) return texts;
  texts["nnodes"] = std::to_string(plan.nodes);
  texts["node-rank"] = std::to_string(plan.node_rank);
  texts["rdzv-endpoint"] = to_text(plan.endpoint);
  texts["rdzv-id"] = plan.job_id;
  return texts;
}

std::string to_sentence(const ClusterPlan& plan, int workers, bool meets) {
  std::string text = plan.name;
  text += meets ? concat(": node ", plan.node_rank, " of ", plan.nodes) : ": one node";
  text += ", " + counted(workers, "worker");
  if (plan.gpus == workers) text += " (GPUs of the step)";
  if (meets) text += ", rendezvous at " + to_text(plan.endpoint);
  return text;
}

}  // namespace ddprun
