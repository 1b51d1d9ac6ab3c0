#include <algorithm>
#include <string_view>

#include "base/concat.h"
#include "base/parse_number.h"
#include "base/split.h"
#include "launcher/cluster/core/detector.h"

namespace ddprun {
namespace {

// Launcher: a command that starts tasks with a rank. "" stands for a variable that it has not.
struct Launcher {
  const char* name;
  const char* sign;  // is set in tasks only
  const char* size;  // the number of tasks
  const char* rank;
  const char* local_rank;
  const char* local_size;  // the number of tasks on this node
  const char* nodes;       // the number of nodes with tasks
  const char* job_id;
  const char* remedy;
  // Lists the GPUs that all tasks of this node share. "": they are those of the job in which the
  // launcher runs.
  const char* gpus;
};

// A launcher that runs in the jobs of another one comes before it.
//
// Open MPI: 5.0 has PRRTE and no OMPI_MCA_orte_*. Source: environments that 4.1.4 and 5.0.11 gave.
// Hydra: only Intel MPI names its job. Source: environments that MPICH 4.0.2 and Intel MPI 2021.18
// gave.
// Flux: the shell and the batch script of a job have none of these variables. Source:
// flux-environment(7). Its shell gives each task the GPUs of the node. Source: flux-core,
// gpubind.c.
constexpr Launcher kLaunchers[] = {
    {"Open MPI job", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_MCA_orte_num_nodes",
     "PMIX_NAMESPACE", "mpirun -N 1", ""},
    {"Hydra job", "MPI_LOCALNRANKS", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     "", "I_MPI_HYDRA_UUID", "mpiexec -ppn 1", ""},
    {"Flux job", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "",
     "FLUX_JOB_NNODES", "FLUX_JOB_ID", "flux run --tasks-per-node=1", "CUDA_VISIBLE_DEVICES"},
};

// MpirunNode: the node on which mpirun of Open MPI runs.
struct MpirunNode {
  std::string host;      // empty: mpirun does not say
  bool is_here = false;  // this process is on that node
};

MpirunNode mpirun_node(const EnvLookup& lookup) {
  // Open MPI 4: "2705.0;tcp://192.0.2.2:38817;tcp6://[fd00::2]:60015". The daemons of all nodes
  // reach mpirun there. With several addresses, "tcp://192.0.2.2,172.17.0.1:38817", only some of
  // them may do, so none is taken.
  const std::string uri = lookup("OMPI_MCA_orte_hnp_uri").value_or("");
  std::string host;
  for (std::string_view part : split(uri, ';')) {
    constexpr std::string_view kScheme = "tcp://";
    if (!part.starts_with(kScheme)) continue;
    part.remove_prefix(kScheme.size());
    const bool is_only_one = host.empty() && part.find(',') == part.npos;
    if (!is_only_one) return {};
    host = part.substr(0, part.find(':'));
  }
  if (!uri.empty()) return {host, uri == lookup("OMPI_MCA_orte_local_daemon_uri")};
  // Open MPI 5: "prterun-node18-12345@1". The daemon of mpirun's node is prterun-node18-12345@0.0.
  const std::string space = lookup("PMIX_NAMESPACE").value_or("");
  const std::string base = space.substr(0, space.find('@'));
  const std::size_t begin = base.find('-');
  const std::size_t end = base.rfind('-');
  if (!lookup("PRTE_LAUNCHED") || begin == end) return {};
  return {base.substr(begin + 1, end - begin - 1),
          lookup("PMIX_SERVER_URI2").value_or("").starts_with(base + "@0.0;")};
}

constexpr const char* kAzureHost = "AZ_BATCH_MASTER_NODE";

// Returns the host of node rank 0. Empty: it is not known. The error tells rank 0 that it is
// not where the others seek it. mpirun ends the others when rank 0 fails.
Result<std::string> first_host(const EnvLookup& lookup, int nodes, int rank) {
  // Azure Batch and Azure ML run mpirun there: "10.0.0.4:6000". Source: Azure Batch, "Azure Batch
  // compute node environment variables".
  const std::string azure = lookup(kAzureHost).value_or("");
  if (!azure.empty()) return azure.substr(0, azure.find(':'));
  const MpirunNode mpirun = mpirun_node(lookup);
  if (mpirun.host.empty() || rank != 0 || mpirun.is_here) return mpirun.host;
  return invalid_argument(
      concat("rank 0 is not on ", mpirun.host,
             ", where mpirun runs: give --rdzv-endpoint=HOST:PORT with the host of rank 0, ",
             "--rdzv-id=NAME and --nnodes=", nodes, " (for this node alone, add --nnodes=1)"));
}

// Returns the count. nullopt: the variable is not set.
Result<std::optional<int>> count_in(const EnvLookup& lookup, const char* name, const char* sign) {
  if (lookup(name).value_or("").empty()) return std::nullopt;
  const Result<int> count = needed_count(lookup, name, sign);
  if (!count) return count.error();
  return *count;
}

int divide_up(int number, int by) { return number / by + (number % by != 0 ? 1 : 0); }

Result<std::optional<ClusterPlan>> plan_of(const Launcher& launcher, const EnvLookup& lookup) {
  const char* const sign = launcher.sign;
  const Result<int> size = needed_count(lookup, launcher.size, sign);
  if (!size) return size.error();
  const Result<int> rank = needed_index(lookup, launcher.rank, sign, *size, launcher.size);
  if (!rank) return rank.error();
  const Result<std::optional<int>> own_tasks = count_in(lookup, launcher.local_size, sign);
  if (!own_tasks) return own_tasks.error();
  const Result<std::optional<int>> nodes = count_in(lookup, launcher.nodes, sign);
  if (!nodes) return nodes.error();

  ClusterPlan plan;
  plan.job_id = lookup(launcher.job_id).value_or(kDefaultJobId);
  plan.name =
      plan.job_id == kDefaultJobId ? launcher.name : concat(launcher.name, " ", plan.job_id);
  // All nodes must compute the same numbers, even if their numbers of tasks differ.
  plan.tasks = std::max(own_tasks->value_or(1), *nodes ? divide_up(*size, **nodes) : 1);
  plan.own_tasks = own_tasks->value_or(plan.tasks);
  plan.nodes = plan.tasks == 1 ? *size : nodes->value_or(divide_up(*size, plan.tasks));
  plan.node_rank = plan.tasks == 1 ? std::optional(*rank) : std::nullopt;
  plan.remedy = launcher.remedy;
  if (plan.tasks > 1) {
    const Result<int> local =
        needed_index(lookup, launcher.local_rank, sign, plan.tasks, launcher.size);
    if (!local) return local.error();
    plan.local_task = *local;
  }
  if (plan.tasks == 1) plan.workers = listed_gpus(lookup, launcher.gpus);
  plan.takes_gpus_of_job = plan.tasks == 1 && std::string_view(launcher.gpus).empty();
  plan.workers_are = "GPUs of the job";
  const bool is_even = *nodes ? *own_tasks || *size % plan.nodes == 0 : *size % plan.tasks == 0;
  if (!is_even) {
    return invalid_value(std::to_string(*size), concat("expected the same number of tasks on each ",
                                                       "of ", plan.nodes, " nodes: ", plan.remedy))
        .within(launcher.size);
  }
  if (plan.nodes > 1) {
    const Result<std::string> host = first_host(lookup, plan.nodes, *rank);
    if (!host) {
      plan.no_starter = host.error().message();
      return plan;
    }
    if (!host->empty()) meet_near(plan, *host, port_of(plan.job_id));
    // Without an id, the service of the job could not be told from another's. On Azure, rank 0 may
    // be elsewhere, so every node of that address must be ready to listen, and on one port only.
    const bool is_azure = !lookup(kAzureHost).value_or("").empty();
    if (plan.job_id == kDefaultJobId || is_azure) plan.next_ports.clear();
  }
  return plan;
}

}  // namespace

Result<std::optional<ClusterPlan>> detect_mpi(const EnvLookup& lookup) {
  if (is_worker(lookup)) return std::nullopt;
  for (const Launcher& launcher : kLaunchers) {
    if (!lookup(launcher.sign).value_or("").empty()) return plan_of(launcher, lookup);
  }
  // prterun without Open MPI tells its tasks no numbers. Source: what Open MPI 5.0.11 gave, without
  // the variables that Open MPI itself adds.
  if (!lookup("PRTE_LAUNCHED") || !lookup("PMIX_RANK")) return std::nullopt;
  ClusterPlan plan;
  plan.name = "PRRTE job";
  plan.job_id = kDefaultJobId;
  plan.nodes_remedy =
      "it does not say how many nodes and tasks it has: give --nnodes, --nproc-per-node, "
      "--rdzv-id=NAME and --rdzv-endpoint=HOST:PORT (for this node alone, add --nnodes=1)";
  return plan;
}

}  // namespace ddprun
