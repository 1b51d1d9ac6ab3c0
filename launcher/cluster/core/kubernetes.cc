#include <algorithm>
#include <string_view>

#include "base/concat.h"
#include "base/parse_number.h"
#include "launcher/cluster/core/detector.h"
#include "launcher/cluster/core/pod_names.h"

namespace ddprun {
namespace {

// Each pod has its own network namespace, so that all may use the same port.
//
// LeaderWorkerSet: its leader is in the group and has index 0. Source: LeaderWorkerSet,
// pod_utils.go, AddLWSVariables().
// Volcano: the job plugin pytorch counts pods, not workers, and always adds the plugin svc, which
// sets VC_MASTER_HOSTS if the task of node rank 0 has its default name. Source: Volcano, "Pytorch
// Plugin User Guide"; pytorch.go.
constexpr NodeVariables kControllers[] = {
    {"LeaderWorkerSet", "LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX",
     "LWS_LEADER_ADDRESS", nullptr, "LWS_LEADER_ADDRESS"},
    {"Volcano job", "VC_MASTER_HOSTS", "WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT",
     "MASTER_ADDR"},
};

// PyTorchJob: a job without elasticPolicy gives its pods these variables and no others. Source:
// Kubeflow's training operator 1.x, envvar.go, setPodEnv().
constexpr NodeVariables kPyTorchJob{"PyTorchJob",  "MASTER_ADDR", "WORLD_SIZE", "RANK",
                                    "MASTER_ADDR", "MASTER_PORT", "HOSTNAME"};

constexpr const char* kPod = "Kubernetes pod";

// Returns the plan of a pod of a PyTorchJob. Its variables may also be those of a worker. The name
// of the pod must prove them: JOB-master-0 has rank 0, and JOB-worker-N has rank N + 1.
Result<std::optional<ClusterPlan>> plan_of_pytorchjob(const EnvLookup& lookup) {
  for (const char* more : {"LOCAL_RANK", "PET_NNODES", "PET_RDZV_ENDPOINT", "PET_MASTER_ADDR"})
    if (lookup(more)) return std::nullopt;
  const std::string pod = lookup(kPyTorchJob.job_id).value_or("");
  const std::size_t dash = pod.rfind('-');
  if (dash == pod.npos) return std::nullopt;
  const auto index = parse_number<std::uint64_t>(pod.substr(dash + 1));
  const auto rank = parse_number<std::uint64_t>(lookup(kPyTorchJob.node_rank).value_or(""));
  if (!index || !rank) return std::nullopt;
  const std::string role = pod.substr(0, dash);
  constexpr std::string_view kMaster = "-master";
  constexpr std::string_view kWorker = "-worker";
  const bool is_master = role.ends_with(kMaster) && *index == 0 && *rank == 0;
  if (!is_master && !(role.ends_with(kWorker) && *rank == *index + 1)) return std::nullopt;
  Result<std::optional<ClusterPlan>> plan = plan_from(kPyTorchJob, lookup);
  if (!plan || !*plan) return plan;
  (*plan)->job_id = role.substr(0, role.size() - (is_master ? kMaster : kWorker).size());
  (*plan)->name = concat(kPyTorchJob.name, " ", (*plan)->job_id);
  // Older operators tell the master that it is localhost.
  if (is_master) (*plan)->endpoint.host = pod;
  return plan;
}

// Returns the number of pods that the manifest passes as PET_NNODES=4 or, for an elastic job, 2:4.
// Wrong texts are reported when the option is applied.
int pods_of_manifest(const EnvLookup& lookup) {
  const std::string text = lookup("PET_NNODES").value_or("");
  const std::size_t colon = text.find(':');
  const std::string most = colon == text.npos ? text : text.substr(colon + 1);
  return std::max(parse_number<int>(most).value_or(1), 1);
}

// A pod of an Indexed Job knows its index, but not the number of pods. JobSet and the Trainer of
// Kubeflow make such Jobs; Kubeflow passes PET_* and needs nothing else. Source: Kubernetes, "Job",
// "Completion mode"; Kubeflow Trainer, torch.go.
Result<std::optional<ClusterPlan>> plan_of_pod(const EnvLookup& lookup) {
  constexpr const char* kIndex = "JOB_COMPLETION_INDEX";
  ClusterPlan plan;
  plan.name = kPod;
  plan.job_id = kDefaultJobId;
  if (!lookup(kIndex)) return plan;
  const Result<std::uint64_t> index = needed_number(lookup, kIndex, kIndex);
  if (!index) return index.error();
  plan.name += concat(" with index ", *index);
  plan.nodes = pods_of_manifest(lookup);
  plan.endpoint_remedy =
      "set PET_RDZV_ENDPOINT=JOB-0.SERVICE:29400 in the manifest, or name a ddp-rendezvous";
  if (*index > 0 && !lookup("PET_NNODES")) {
    plan.nodes_remedy =
        "PET_NNODES is not set: set it to the number of pods in the manifest (1 for this pod "
        "alone)";
  }
  // Two Jobs of a JobSet have the same indexes. With an endpoint the service orders the pods.
  const bool is_ordered = lookup("PET_RDZV_ENDPOINT").has_value();
  if (!is_ordered && *index < static_cast<std::uint64_t>(plan.nodes)) {
    plan.node_rank = static_cast<int>(*index);
  } else if (plan.nodes > 1) {
    plan.node_rank = std::nullopt;
  }
  return plan;
}

}  // namespace

Result<std::optional<ClusterPlan>> detect_pod(const EnvLookup& lookup) {
  if (!is_in_pod(lookup) || is_worker(lookup)) return std::nullopt;
  Result<std::optional<ClusterPlan>> plan = std::nullopt;
  for (const NodeVariables& controller : kControllers) {
    // The sign of Volcano is there without its plugin pytorch, too.
    if (!lookup(controller.host) || !lookup(controller.node_rank)) continue;
    plan = plan_from(controller, lookup);
    if (!plan || *plan) break;
  }
  if (plan && !*plan) plan = plan_of_pytorchjob(lookup);
  if (plan && !*plan) plan = plan_of_pod(lookup);
  if (!plan) return plan;
  // The device plugin of NVIDIA sets it to the GPUs of the container, or, by its other strategies,
  // to a directory or to "void". Other plugins do not set it. In these cases a container sees only
  // its own GPUs. Images set it to "all". Source: NVIDIA k8s-device-plugin, README.md,
  // DEVICE_LIST_STRATEGY.
  constexpr const char* kList = "NVIDIA_VISIBLE_DEVICES";
  const std::string list = lookup(kList).value_or("");
  const bool is_directory = list.starts_with('/');
  if (!is_directory) (*plan)->workers = listed_gpus(lookup, kList);
  (*plan)->workers_are = "GPUs of the pod";
  (*plan)->counts_gpus = is_directory || list.empty() || list == "void";
  (*plan)->has_only_workers = (*plan)->name == kPod;
  return plan;
}

}  // namespace ddprun
