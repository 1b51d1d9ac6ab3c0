#include "ddprun/context.h"

#include <algorithm>

#include "base/worker_env.h"
#include "rendezvous/store_client.h"
#include "worker_lib/backend_cpu.h"
#include "worker_lib/backend_nccl.h"
#include "worker_lib/checkpoint_announcement.h"
#include "worker_lib/cpu/solo_group.h"
#include "worker_lib/error_bridge.h"
#include "worker_lib/error_file.h"
#include "worker_lib/save_request.h"
#include "worker_lib/work_state.h"
#include "worker_lib/worker_reporter.h"

namespace ddprun {
namespace {

// Every key of the worker library begins with it, so that PyTorch's keys in the same store are
// others.
constexpr const char* kKeyPrefix = "ddprun";

// A launcher's store is up before its workers; what a person starts by hand may come a little
// later.
constexpr Duration kPatienceWithLauncher = std::chrono::minutes(5);
constexpr Duration kPatienceByHand = std::chrono::seconds(10);

// --- device and backend

struct Choice {
  torch::Device device;
  bool is_nccl;
};

[[noreturn]] void refuse_init(const std::string& what,
                              DistError::Kind kind = DistError::Kind::kInvalidArgument) {
  refuse("ddprun::init: " + what, kind);
}

int count_gpus(const BackendFactory* nccl) { return nccl ? nccl->device_count() : 0; }

torch::Device choose_gpu(std::optional<torch::Device> asked, LocalRank local_rank,
                         const BackendFactory* nccl) {
  if (!nccl) {
    refuse_init(
        "device cuda and backend nccl need a program that is linked with ddprun::worker_cuda; "
        "this one is linked with ddprun::worker",
        DistError::Kind::kUnsupported);
  }
  const int gpus = count_gpus(nccl);
  if (gpus == 0)
    refuse_init("there is no GPU here, or no driver for it", DistError::Kind::kUnsupported);
  if (!asked || !asked->has_index()) {
    return torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(local_rank.value % gpus));
  }
  if (asked->index() >= gpus) {
    refuse_init("device " + asked->str() + " does not exist; there are " + std::to_string(gpus) +
                " GPUs, cuda:0 to cuda:" + std::to_string(gpus - 1));
  }
  return *asked;
}

Choice choose(const InitOptions& options, LocalRank local_rank, const BackendFactory* nccl) {
  const auto& device = options.device;
  const auto& backend = options.backend;
  if (backend && *backend != "cpu" && *backend != "nccl") {
    refuse_init("there is no backend '" + *backend + "'; there are cpu and nccl");
  }
  if (device && !device->is_cpu() && !device->is_cuda()) {
    refuse_init("device " + device->str() + " is not known here; there are cpu and cuda");
  }
  if (device && device->is_cpu() && backend == "nccl") {
    refuse_init("backend nccl is for device cuda, not cpu");
  }
  if (device && device->is_cuda() && backend == "cpu") {
    refuse_init(
        "backend cpu takes tensors on the cpu only; use backend nccl with device " + device->str(),
        DistError::Kind::kUnsupported);
  }
  const bool wants_gpu = (device && device->is_cuda()) || backend == "nccl";
  const bool wants_cpu = device || backend;
  if (wants_gpu || (!wants_cpu && count_gpus(nccl) > 0)) {
    return {choose_gpu(device, local_rank, nccl), true};
  }
  return {torch::kCPU, false};
}

// --- meeting the others

// By hand nobody may be hosting a store, which this rank must not wait for as long as for a slow
// node.
Result<std::unique_ptr<StoreClient>> connect_to_store(const WorkerEnv& env, Duration timeout) {
  const Duration patience = env.agent_store ? kPatienceWithLauncher : kPatienceByHand;
  const HostPort address = store_address(env);
  auto store = StoreClient::connect({.address = address,
                                     .prefix = kKeyPrefix,
                                     .connect_timeout = std::min(timeout, patience),
                                     .timeout = timeout});
  if (store || env.agent_store) return store;
  Error error = store.error();
  error.cause +=
      "; without a launcher a store must be there already: start the program with ddprun or "
      "torchrun, or run 'ddp-store --listen " +
      to_text(address) + "' first";
  return error;
}

// Unique in the store: with a store that lives on after a restart (torchrun's does), addresses of
// the generation before must not be found.
std::string group_name(const WorkerEnv& env) {
  return env.run_id + "/generation-" + to_text(env.generation) + "/world";
}

Result<std::unique_ptr<CpuGroup>> meet_ranks(StoreClient* store, const WorkerEnv& env,
                                             Duration timeout) {
  if (!store) return make_solo_group();
  // The launcher's node: two nodes of a job may be simulated on one machine. Whether processes of
  // one node can share memory at all (same boot of the same kernel, same network namespace: not so
  // in two containers) the engine finds out by itself.
  return CpuGroup::form(*store, {.rank = env.rank,
                                 .world_size = env.world_size,
                                 .node_id = "node " + to_text(env.node_rank),
                                 .name = group_name(env),
                                 .ports = env.ports,
                                 .node_silence = env.lease,
                                 .timeout = timeout});
}

Result<std::unique_ptr<Backend>> form_backend(const Choice& choice, StoreClient* store,
                                              const WorkerEnv& env, Duration timeout,
                                              const BackendFactory* nccl) {
  const Deadline deadline(timeout);
  Result<std::unique_ptr<CpuGroup>> group = meet_ranks(store, env, timeout);
  if (!group) return group.error();
  if (!choice.is_nccl) return std::unique_ptr<Backend>(new CpuBackend(std::move(*group)));
  return nccl->form(store,
                    {.rank = env.rank,
                     .world_size = env.world_size,
                     .device = choice.device,
                     .name = group_name(env),
                     .timeout = deadline.remaining()},
                    std::move(*group));
}

Result<std::unique_ptr<Backend>> meet(const Choice& choice, const WorkerEnv& env, Duration timeout,
                                      const BackendFactory* nccl) {
  const Deadline deadline(timeout);
  if (choice.is_nccl) {
    const Result<void> selected = nccl->select_device(choice.device.index());
    if (!selected) return selected.error();
  }
  if (env.world_size == 1) return form_backend(choice, nullptr, env, timeout, nccl);

  const auto store = connect_to_store(env, timeout);
  if (!store) return store.error();
  return form_backend(choice, store->get(), env, deadline.remaining(), nccl);
}

}  // namespace

struct Context::Impl {
  WorkerEnv env;
  torch::Device device;
  std::shared_ptr<WorkerReporter> reporter;
  ProcessGroup group;
};

Context init_with(const InitOptions& options, BackendFactory* nccl) {
  return with_dist_errors("ddprun::init", [&] {
    if (options.timeout <= Timeout::zero()) {
      refuse_init("timeout must be more than zero");
    }
    const Result<std::optional<WorkerEnv>> read = read_worker_env(environment_variable);
    if (!read) throw to_dist_error(Error(read.error()).within("ddprun::init"));
    const WorkerEnv env = read->value_or(WorkerEnv());
    write_uncaught_exceptions_to(env.error_file);
    listen_for_save_requests(env.checkpoint_signal);

    const Choice choice = choose(options, env.local_rank, nccl);
    Result<std::unique_ptr<Backend>> backend = meet(choice, env, options.timeout, nccl);
    if (!backend) {
      throw to_dist_error(Error(backend.error())
                              .within("ddprun::init of rank " + to_text(env.rank) + " of " +
                                      std::to_string(env.world_size)));
    }
    std::shared_ptr<WorkerReporter> reporter = WorkerReporter::open(env);
    return Context(std::unique_ptr<Context::Impl>(
        new Context::Impl{env,
                          choice.device,
                          reporter,
                          {std::move(*backend), choice.device, options.timeout, reporter}}));
  });
}

Context::Context(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Context::~Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;

int Context::rank() const { return impl_->env.rank.value; }
int Context::world_size() const { return impl_->env.world_size; }
int Context::local_rank() const { return impl_->env.local_rank.value; }
int Context::local_world_size() const { return impl_->env.local_world_size; }
int Context::node_rank() const { return impl_->env.node_rank.value; }
long Context::generation() const { return impl_->env.generation.value; }
int Context::restart_count() const { return impl_->env.restart_count; }
const std::string& Context::run_id() const { return impl_->env.run_id; }
torch::Device Context::device() const { return impl_->device; }
ProcessGroup& Context::group() { return impl_->group; }

bool Context::save_requested() {
  if (impl_->env.checkpoint_signal == 0) return false;  // on every rank
  if (world_size() == 1) return save_was_requested();
  const torch::Tensor any = torch::zeros({1}, torch::TensorOptions(torch::kInt32).device(device()));
  if (save_was_requested()) any.fill_(1);
  group().all_reduce(any, {.op = ReduceOp::kMax}).wait();
  return any.item<int>() != 0;
}

void Context::report_progress(std::int64_t step) { impl_->reporter->report_step(step); }
void Context::report_activity() { impl_->reporter->report_activity(); }

std::function<void(std::int64_t)> Context::checkpoint_announcer() const {
  // Another launcher has nobody in its store who would listen.
  if (!environment_variable("DDPRUN_GENERATION")) return [](std::int64_t) {};
  return [env = impl_->env](std::int64_t step) {
    const Result<void> told = announce_checkpoint(env, step);
    if (!told) TORCH_WARN(told.error().message());
  };
}

}  // namespace ddprun
