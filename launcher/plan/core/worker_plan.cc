#include "launcher/plan/core/worker_plan.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string_view>

#include "base/worker_page.h"

namespace ddprun {
namespace {

bool is_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Returns the length of the macro at the start of text: "${local_rank}", or "$local_rank" if no
// longer name follows. Returns 0 if there is none.
std::size_t macro_at(std::string_view text) {
  constexpr std::string_view kBraced = "${local_rank}";
  constexpr std::string_view kPlain = "$local_rank";
  if (text.starts_with(kBraced)) return kBraced.size();
  if (!text.starts_with(kPlain)) return 0;
  const bool goes_on = text.size() > kPlain.size() && is_of_name(text[kPlain.size()]);
  return goes_on ? 0 : kPlain.size();
}

// Replaces the macro as torchrun does, which uses Python's string.Template. Differs in one way:
// "$$" stays as it is, because it comes from a shell, unless the macro follows, which it then
// protects.
std::string with_local_rank(std::string_view text, LocalRank rank) {
  std::string made;
  while (!text.empty()) {
    const bool is_protected = text[0] == '$' && macro_at(text.substr(1)) > 0;
    const std::size_t length = is_protected ? 1 + macro_at(text.substr(1)) : macro_at(text);
    if (is_protected) {
      made += text.substr(1, length - 1);
    } else if (length > 0) {
      made += to_text(rank);
    } else {
      made += text[0];
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return made;
}

}  // namespace

std::vector<WorkerPlan> plan_workers(const PlanOptions& given, const Assignment& assignment) {
  const LaunchOptions& options = given.options;
  std::vector<WorkerPlan> plans;
  for (int i = 0; i < given.slots; ++i) {
    WorkerPlan plan;
    plan.local_rank = LocalRank(i);
    plan.rank = Rank(assignment.first_rank.value + i);
    if (!given.log_directory.empty()) {
      plan.directory = given.log_directory + "/" + std::to_string(i);
    }
    for (const std::string& argument : given.command.arguments) {
      plan.arguments.push_back(with_local_rank(argument, plan.local_rank));
    }

    WorkerEnv env;
    env.rank = plan.rank;
    env.world_size = assignment.world_size;
    env.local_rank = options.virtual_local_rank ? LocalRank(0) : plan.local_rank;
    env.local_world_size = given.slots;
    env.node_rank = assignment.node_rank;
    env.node_count = assignment.node_count;
    env.role = options.role;
    env.master_addr = assignment.store.host;
    env.master_port = assignment.store.port;
    env.agent_store = options.has_agent_store();
    env.restart_count = assignment.restart_count;
    env.max_restarts = options.max_restarts;
    env.run_id = options.rdzv_id;
    env.submission = given.submission;
    if (!plan.directory.empty()) plan.error_file = plan.directory + "/error.json";
    env.error_file = plan.error_file;
    env.nccl_async_error_handling = given.inherited_nccl_async_error_handling.empty()
                                        ? "1"
                                        : given.inherited_nccl_async_error_handling;
    if (!given.seats.empty()) {
      const Seat& seat = given.seats[static_cast<std::size_t>(i)];
      plan.cpus = seat.cpus;
      if (!given.inherits_omp_threads) env.omp_num_threads = std::to_string(seat.threads);
    }
    if (!given.own_devices.empty()) {
      env.cuda_visible_devices = given.own_devices[static_cast<std::size_t>(i)];
    }
    env.generation = assignment.generation;
    env.lease = assignment.lease;
    env.ports = options.ports;
    env.checkpoint_signal = options.checkpoint_signal;
    env.page_file = given.page_file;
    env.page_offset = static_cast<std::size_t>(i) * kWorkerPageBytes;
    plan.variables = variables_of(env);
    for (const auto& variable : options.variables) {
      // Each worker has its own part of this list.
      const bool is_divided =
          variable.first == "CUDA_VISIBLE_DEVICES" && !given.own_devices.empty();
      if (!is_divided) plan.variables.push_back(variable);
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace ddprun
