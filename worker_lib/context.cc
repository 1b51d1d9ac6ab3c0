#include "ddprun/context.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "base/deadline.h"
#include "base/worker_env.h"
#include "worker_lib/backend_nccl.h"
#include "worker_lib/checkpoint_announcement.h"
#include "worker_lib/core/start_plan.h"
#include "worker_lib/error_bridge.h"
#include "worker_lib/error_file.h"
#include "worker_lib/group_maker.h"
#include "worker_lib/save_request.h"
#include "worker_lib/work_state.h"
#include "worker_lib/worker_reporter.h"
#include "worker_lib/world_store.h"

namespace ddprun {
namespace {

// What a rank 0 that ends allows the others, which may still need the store that it hosts.
constexpr Duration kLeavePatience = std::chrono::minutes(1);
constexpr Duration kSilentLeave = std::chrono::seconds(10);  // of it: before it says that it waits
// The same where the world could not be formed: they have just been told why.
constexpr Duration kFailedLeavePatience = std::chrono::seconds(2);

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

Result<std::unique_ptr<WorldStore>> find_store(const StartPlan& plan, const InitOptions& options) {
  if (plan.meet_at == MeetAt::kNowhere) return std::unique_ptr<WorldStore>();
  return WorldStore::open({.plan = plan,
                           .given = options.store,
                           .local_address = options.local_address,
                           .timeout = options.timeout});
}

}  // namespace

struct Context::Impl {
  WorkerEnv env;
  torch::Device device;
  std::shared_ptr<WorkerReporter> reporter;
  std::unique_ptr<WorldStore> store;    // null in a world of one; outlives the groups
  std::unique_ptr<GroupMaker> maker;    // outlives them, too
  const CpuGroup* peers = nullptr;      // inside the group
  std::unique_ptr<ProcessGroup> group;  // of all ranks

  ~Impl();
  Result<void> meet(const InitOptions& options, const StartPlan& plan, const BackendFactory* nccl);
};

// Forms the group of all ranks.
Result<void> Context::Impl::meet(const InitOptions& options, const StartPlan& plan,
                                 const BackendFactory* nccl) {
  const Deadline deadline(options.timeout);
  if (nccl) {
    const Result<void> selected = nccl->select_device(device.index());
    if (!selected) return selected.error();
  }
  Result<std::unique_ptr<WorldStore>> found = find_store(plan, options);
  if (!found) return found.error();
  store = std::move(*found);
  maker = std::make_unique<GroupMaker>(GroupMakerOptions{.env = env,
                                                         .device = device,
                                                         .nccl = nccl,
                                                         .store = store.get(),
                                                         .reporter = reporter,
                                                         .timeout = options.timeout});
  Result<std::unique_ptr<ProcessGroup>> formed = maker->form_world(deadline.remaining(), &peers);
  if (!formed) {
    // What they were told is in the store: who did not come.
    if (store) store->await_leave(kFailedLeavePatience);
    return formed.error();
  }
  group = std::move(*formed);
  if (store) store->world_is_formed();
  return {};
}

// Rank 0 ends the store that it hosts when the others have left it, too: they may still form
// groups. It does not wait in vain where the world has failed.
Context::Impl::~Impl() {
  if (!group) return;  // it was never formed
  const bool is_well = !peers->failure() && std::uncaught_exceptions() == 0;
  group.reset();  // the others see at once that this rank has left
  if (!store || !is_well || store->await_leave(kSilentLeave)) return;
  TORCH_WARN("ddprun: rank 0 has ended but for the store that it hosts, and waits up to ",
             to_text(kLeavePatience), " for the ranks that are still connected to it");
  store->await_leave(kLeavePatience - kSilentLeave);
}

Context init_with(const InitOptions& options, BackendFactory* nccl) {
  return with_dist_errors("ddprun::init", [&] {
    if (options.timeout <= Timeout::zero()) {
      refuse_init("timeout must be more than zero");
    }
    const Result<StartPlan> plan = plan_start({.init_method = options.init_method,
                                               .rank = options.rank,
                                               .world_size = options.world_size,
                                               .has_store = options.store != nullptr},
                                              environment_variable);
    if (!plan) throw to_dist_error(Error(plan.error()).within("ddprun::init"));
    const WorkerEnv& env = plan->env;
    write_uncaught_exceptions_to(env.error_file);
    listen_for_save_requests(env.checkpoint_signal);

    const Choice choice = choose(options, env.local_rank, nccl);
    std::unique_ptr<Context::Impl> impl(new Context::Impl{
        .env = env, .device = choice.device, .reporter = WorkerReporter::open(env)});
    const Result<void> met = impl->meet(options, *plan, choice.is_nccl ? nccl : nullptr);
    if (!met) {
      throw to_dist_error(Error(met.error())
                              .within("ddprun::init of rank " + to_text(env.rank) + " of " +
                                      std::to_string(env.world_size)));
    }
    return Context(std::move(impl));
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
ProcessGroup& Context::group() { return *impl_->group; }

std::unique_ptr<ProcessGroup> Context::new_group(const std::vector<int>& ranks,
                                                 const GroupOptions& options) {
  const auto refuse_group = [](const std::string& why) { refuse("new_group: " + why); };
  std::vector<int> members = ranks;
  std::ranges::sort(members);
  if (members.empty()) refuse_group("ranks must hold at least one rank");
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] < 0 || members[i] >= world_size()) {
      refuse_group("rank " + std::to_string(members[i]) +
                   " is no rank of the world; its ranks are "
                   "0 .. " +
                   std::to_string(world_size() - 1));
    }
    if (i > 0 && members[i] == members[i - 1]) {
      refuse_group("rank " + std::to_string(members[i]) + " is there twice");
    }
  }
  if (options.timeout && *options.timeout <= Timeout::zero()) {
    refuse_group("timeout must be more than zero");
  }
  if (!std::ranges::binary_search(members, rank())) return nullptr;
  return with_dist_errors("new_group",
                          [&] { return value_or_throw(impl_->maker->form(members, options)); });
}

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
