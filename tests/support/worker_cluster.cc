#include "tests/support/worker_cluster.h"

#include "base/worker_env.h"
#include "tests/support/running_store.h"

namespace ddprun::testing_support {
namespace {

WorkerEnv env_of(int rank, const WorkerClusterOptions& options, std::uint16_t port) {
  WorkerEnv env;
  env.rank = Rank(rank);
  env.world_size = options.nodes * options.per_node;
  env.local_rank = LocalRank(rank % options.per_node);
  env.local_world_size = options.per_node;
  env.node_rank = NodeRank(rank / options.per_node);
  env.node_count = options.nodes;
  env.master_addr = "127.0.0.1";
  env.master_port = port;
  env.agent_store = true;
  env.run_id = "test";
  env.omp_num_threads = "1";
  env.generation = Generation(options.generation);
  return env;
}

}  // namespace

WorkerCluster::WorkerCluster(const WorkerClusterOptions& options)
    : store_(std::make_unique<RunningStore>()) {
  for (int rank = 0; rank < options.nodes * options.per_node; ++rank) {
    ChildProcess::Options process;
    for (auto& variable : variables_of(env_of(rank, options, store_->port())))
      process.variables.push_back(std::move(variable));
    workers_.push_back(std::make_unique<ChildProcess>(options.command, std::move(process)));
  }
}

WorkerCluster::~WorkerCluster() = default;

std::string WorkerCluster::output(int rank) const {
  const ChildProcess& worker = *workers_[static_cast<std::size_t>(rank)];
  return worker.out() + worker.err();
}

void WorkerCluster::signal(int rank, int number) {
  workers_[static_cast<std::size_t>(rank)]->signal(number);
}

bool WorkerCluster::wait_for_all(Duration timeout) {
  const TimePoint end = in(timeout);
  bool all = true;
  for (const auto& worker : workers_) all &= worker->wait(end - BootClock::now()).has_value();
  return all;
}

int WorkerCluster::exit_code(int rank) const {
  return workers_[static_cast<std::size_t>(rank)]->exit_code().value();
}

}  // namespace ddprun::testing_support
