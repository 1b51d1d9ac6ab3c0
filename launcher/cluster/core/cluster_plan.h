// ClusterPlan: what the scheduler that started this process says about its job.
//
// detect_cluster() looks only at the variables. launcher/options/command_line.h uses the plan for
// options that were given nowhere else. Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/host_port.h"
#include "base/result.h"
#include "base/worker_env.h"

namespace ddprun {

struct ClusterPlan {
  std::string name;  // of the scheduler and its job: "Slurm step 812.0"
  int nodes = 1;
  std::optional<int> node_rank = 0;  // nullopt: the scheduler does not say
  HostPort endpoint;  // on node rank 0, for all nodes. No host: the scheduler does not say
  // Ports of that host where the nodes meet if the endpoint's is taken, in order. Empty: nowhere.
  std::vector<std::uint16_t> next_ports;
  std::string job_id;  // unlike that of any other job that runs
  int attempt = 0;     // how often the scheduler has started the job again
  // How the nodes of each job can prove who they are: "munge". Empty: the scheduler offers nothing.
  std::string auth;
  // How the user gives the endpoint if the scheduler does not. Empty: by --rdzv-endpoint.
  std::string endpoint_remedy;
  // How the user gives the number of nodes. Not empty: there are other nodes, and it is not known.
  std::string nodes_remedy;
  // Workers of this node, and what they are: "GPUs of the step". nullopt: the scheduler does not
  // say.
  std::optional<int> workers;
  std::string workers_are;

  // No variable lists the GPUs that the scheduler gave: they are those that are visible here. The
  // caller counts them.
  bool counts_gpus = false;
  // The launcher says nothing of GPUs. They are those of the job in which it runs.
  bool takes_gpus_of_job = false;
  bool has_only_workers = false;  // the plan says nothing else: without workers it says nothing

  // Several tasks on a node: local task 0 is the agent of the node, with a worker for each task.
  // The others wait for it.
  int tasks = 1;       // the most tasks that the scheduler started on one node of this job
  int own_tasks = 1;   // the tasks on this node
  int local_task = 0;  // which of them this process is
  std::string remedy;  // how the scheduler is told to start one task on each node

  // Not empty: no variable says how many nodes there are. This file has a line with the host of
  // each slot; or this command prints the number. The caller asks, and calls count_nodes().
  std::string node_file;
  std::vector<std::string> node_count_command;
  bool must_be_counted() const { return !node_file.empty() || !node_count_command.empty(); }

  int cpus = 0;            // that the job has on this node; 0: the scheduler does not say
  std::string cpu_remedy;  // how the scheduler is told to let a task use them all
  std::string gpu_remedy;  // ... to let a task see the GPUs of all tasks

  // Not empty: the scheduler did not start this process on each node. It is the command that
  // starts one ddprun on each, without ddprun and its arguments; and variables (NAME=VALUE) that
  // those ddpruns cannot take from the scheduler.
  std::vector<std::string> starter;
  std::vector<std::string> starter_variables;
  bool starter_is_srun = true;  // false: like rsh, it takes one line for a shell
  // Not empty: no command of ours can start it on each node, or the others seek node rank 0 on
  // another host; why, and what the user can do.
  std::string no_starter;
};

// Returns the plan of the first scheduler whose variables are there. nullopt: there is none. The
// error is kInvalidArgument and names the variable that is missing or wrong.
//
// is_typed: a person typed this command into a shell that the scheduler started on one of the
// nodes. The other nodes have no such command, so the plan is that of this node alone.
Result<std::optional<ClusterPlan>> detect_cluster(const EnvLookup& lookup, bool is_typed);

// Completes a plan whose number of nodes had to be asked for. answer: what the file has, or what
// the command printed.
void count_nodes(ClusterPlan& plan, std::string_view answer);

// Returns a remark if this process may use fewer CPUs than the job has here. Else it is empty.
std::string remark_on_cpus(const ClusterPlan& plan, int usable_cpus);

// The job of Slurm in which this ddprun starts workers: "812.0" for a step, "812" for a batch
// script. They inherit it, so that a ddprun in a worker is not taken for a part of that job.
inline constexpr const char* kStepVariable = "DDPRUN_SLURM_STEP";
// Returns the value of that variable. Empty: this process is in no job.
std::string slurm_step(const EnvLookup& lookup);

// Returns how often Slurm has requeued this job.
int requeues_in_slurm(const EnvLookup& lookup);

// Returns variables of Slurm that are another step's: sbatch and salloc pass those of the step in
// which they were typed on. manager: the title of the slurmstepd above this process, such as
// "slurmstepd: [812.batch]"; empty: it is not known.
std::vector<std::string> inherited_variables(const EnvLookup& lookup, std::string_view manager);

// The tasks on each node that a job of Slurm was asked for, as SLURM_TASKS_PER_NODE has them. A
// ddprun that starts others by srun passes it to them: their step has one task on each node. They
// remove it, so that their workers do not inherit it.
inline constexpr const char* kTasksVariable = "DDPRUN_TASKS_PER_NODE";

// What a job takes from the plan: the number of workers only; or also how the nodes meet; or
// nothing, because this ddprun only starts the ddpruns of all nodes, or waits for one.
enum class Taken { kWorkers, kOneNode, kNodes, kStarter, kWait };

// Returns values for options, by the options' names without dashes.
std::map<std::string, std::string> option_texts(const ClusterPlan& plan, Taken taken);

// Returns the line that says what was taken from the scheduler: "Slurm step 812.0: node 1 of 4, 8
// workers (GPUs of the step), rendezvous at n17:20812".
std::string to_sentence(const ClusterPlan& plan, int workers, Taken taken);

}  // namespace ddprun
