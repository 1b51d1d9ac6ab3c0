#include "launcher/core/worker_plan.h"

#include <sstream>

namespace ddprun {
namespace {

std::string with_local_rank(std::string text, LocalRank rank) {
  constexpr std::string_view kMacro = "${local_rank}";
  const std::string number = to_text(rank);
  for (std::size_t at = text.find(kMacro); at != std::string::npos;
       at = text.find(kMacro, at + number.size())) {
    text.replace(at, kMacro.size(), number);
  }
  return text;
}

}  // namespace

Result<std::vector<std::string>> devices_of(const std::string& visible, int slots) {
  std::vector<std::string> devices;
  std::istringstream list(visible);
  for (std::string device; std::getline(list, device, ',');) devices.push_back(device);
  if (devices.empty()) {
    for (int i = 0; i < slots; ++i) devices.push_back(std::to_string(i));
  }
  if (devices.size() < static_cast<std::size_t>(slots)) {
    return invalid_argument("CUDA_VISIBLE_DEVICES=" + visible + " has " +
                            std::to_string(devices.size()) + " devices for " +
                            std::to_string(slots) + " workers");
  }
  devices.resize(static_cast<std::size_t>(slots));
  return devices;
}

std::vector<WorkerPlan> plan_workers(const PlanOptions& options, const Assignment& assignment) {
  std::vector<WorkerPlan> plans;
  for (int i = 0; i < options.slots; ++i) {
    WorkerPlan plan;
    plan.local_rank = LocalRank(i);
    plan.rank = Rank(assignment.first_rank.value + i);
    if (!options.log_directory.empty()) {
      plan.directory = options.log_directory + "/" + std::to_string(i);
    }
    for (const std::string& argument : options.command.arguments) {
      plan.arguments.push_back(with_local_rank(argument, plan.local_rank));
    }

    WorkerEnv env;
    env.rank = plan.rank;
    env.world_size = assignment.world_size;
    env.local_rank = options.own_devices.empty() ? plan.local_rank : LocalRank(0);
    env.local_world_size = options.slots;
    env.node_rank = assignment.node_rank;
    env.node_count = assignment.node_count;
    env.role = options.role;
    env.master_addr = assignment.store.host;
    env.master_port = assignment.store.port;
    env.agent_store = options.agent_store;
    env.restart_count = assignment.restart_count;
    env.max_restarts = options.max_restarts;
    env.run_id = options.run_id;
    if (!plan.directory.empty()) plan.error_file = plan.directory + "/error.json";
    env.error_file = plan.error_file;
    env.nccl_async_error_handling = options.inherited_nccl_async_error_handling.empty()
                                        ? "1"
                                        : options.inherited_nccl_async_error_handling;
    if (!options.inherits_omp_threads && options.slots > 1) env.omp_num_threads = "1";
    env.generation = assignment.generation;
    env.lease = assignment.lease;
    env.ports = options.ports;
    env.checkpoint_signal = options.checkpoint_signal;
    plan.variables = variables_of(env);
    if (!options.own_devices.empty()) {
      plan.variables.emplace_back("CUDA_VISIBLE_DEVICES",
                                  options.own_devices[static_cast<std::size_t>(i)]);
    }
    plan.variables.insert(plan.variables.end(), options.variables.begin(), options.variables.end());
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace ddprun
