#include "worker_lib/spawn/core/plan.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>

#include "base/concat.h"
#include "base/counted.h"
#include "base/joined.h"

namespace ddprun {
namespace {

// Inherited variables that a rank keeps: they describe the host and the user's settings, not a
// launcher's worker.
constexpr std::array kKept = std::to_array<std::string_view>(
    {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "DDPRUN_LEASE_MS", "DDPRUN_PORT_RANGE"});

std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNames = 4;
  const std::string text = joined(std::span(names).first(std::min(names.size(), kMostNames)));
  return names.size() > kMostNames ? text + ", ..." : text;
}

}  // namespace

Result<void> check_can_fork(const ForkObstacles& obstacles) {
  std::string cause;
  if (obstacles.has_cuda) {
    cause =
        "this process uses CUDA already, which does not survive a fork. Call spawn() before "
        "anything asks for a GPU, torch::cuda::device_count() included";
  } else if (!obstacles.other_threads.empty()) {
    cause = concat(
        "this process has ", counted(obstacles.other_threads.size(), "more thread"), " (",
        list_of(obstacles.other_threads),
        "), and the locks that a thread holds stay locked in a fork. Call spawn() before "
        "anything starts threads: tensor operations, autograd, data loaders, ddprun::init()");
  } else {
    return {};
  }
  return Error{.kind = ErrorKind::kUnsupported, .doing = "fork the ranks", .cause = cause};
}

RankVariables variables_of_rank(Rank rank, const SpawnPlace& place, const EnvLookup& inherited) {
  WorkerEnv env;
  env.rank = rank;
  env.world_size = place.ranks;
  env.local_rank = LocalRank(rank.value);
  env.local_world_size = place.ranks;
  env.master_addr = place.store.host;
  env.master_port = place.store.port;
  env.agent_store = true;
  env.nccl_async_error_handling = inherited("TORCH_NCCL_ASYNC_ERROR_HANDLING").value_or("1");
  env.omp_num_threads = std::to_string(threads_of_rank(place));
  RankVariables variables;
  const auto is_kept = [&](std::string_view name) {
    return std::ranges::count(kKept, name) > 0 && inherited(name);
  };
  for (auto& variable : variables_of(env)) {
    if (!is_kept(variable.first)) variables.set.push_back(std::move(variable));
  }
  for (const std::string_view name : worker_variables()) {
    const bool is_set = std::ranges::any_of(
        variables.set, [name](const auto& variable) { return variable.first == name; });
    if (!is_set && !is_kept(name) && inherited(name)) variables.unset.emplace_back(name);
  }
  return variables;
}

int threads_of_rank(const SpawnPlace& place) { return std::max(1, place.cpus / place.ranks); }

}  // namespace ddprun
