#include "ddprun/context.h"

#include <torch/cuda.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "base/concat.h"
#include "base/deadline.h"
#include "base/seconds.h"
#include "base/worker_env.h"
#include "worker_lib/context/checkpoint_announcement.h"
#include "worker_lib/context/save_request.h"
#include "worker_lib/context/world_group_factory.h"
#include "worker_lib/cpu_backend/device_staging.h"
#include "worker_lib/flight/worker_reporter.h"
#include "worker_lib/group/any_rank.h"
#include "worker_lib/group/verification.h"
#include "worker_lib/nccl/backend_nccl.h"
#include "worker_lib/store/core/start_plan.h"
#include "worker_lib/store/world_store.h"
#include "worker_lib/util/error_bridge.h"
#include "worker_lib/util/error_file.h"

namespace ddprun {
namespace {

// How long rank 0, when it ends, waits for the others, which may still need the store that it
// hosts.
constexpr Duration kLeavePatience = std::chrono::minutes(1);
constexpr Duration kSilentLeave = std::chrono::seconds(10);  // of this time: before it prints that
                                                             // it waits
// The same if the world could not be formed: the others have just read the reason.
constexpr Duration kFailedLeavePatience = std::chrono::seconds(2);

// --- device and backend

[[noreturn]] void refuse_init(const std::string& what) { refuse("ddprun::init: " + what); }

std::string type_name(torch::DeviceType type) { return c10::DeviceTypeName(type, true); }

CustomBackend custom_backend(const BackendKind& kind) {
  if (kind.name.empty() || kind.name == "cpu" || kind.name == "nccl" ||
      kind.name.find_first_of(":,") != std::string::npos) {
    refuse_init("more_backends: '" + kind.name +
                "' is not a backend name (it must not be empty, cpu or nccl, or contain : or ,)");
  }
  if (kind.devices.empty()) refuse_init("more_backends: " + kind.name + " has no device");
  if (!kind.make) refuse_init("more_backends: " + kind.name + " has no make function");
  CustomBackend custom{.name = kind.name, .device_types = {}};
  for (const torch::DeviceType type : kind.devices) custom.device_types.push_back(type_name(type));
  return custom;
}

BackendChoice choose(const InitOptions& options, LocalRank local_rank, const BackendFactory* nccl) {
  BackendEnvironment around{
      .gpus = nccl ? nccl->device_count() : static_cast<int>(torch::cuda::device_count()),
      .has_nccl = nccl != nullptr,
      .local_rank = local_rank,
      .custom_backends = {}};
  for (const BackendKind& kind : options.more_backends) {
    around.custom_backends.push_back(custom_backend(kind));
  }
  BackendRequest request{.device = {}, .backend = options.backend};
  if (options.device) {
    request.device = DeviceChoice{.type = type_name(options.device->type()), .index = {}};
    if (options.device->has_index()) request.device->index = options.device->index();
  }
  Result<BackendChoice> choice = choose_backends(request, around);
  if (!choice) throw to_dist_error(choice.error().within("ddprun::init"));
  for (const BackendChoice::Server& one : choice->servers) {
    const torch::DeviceType type = torch::Device(one.device_type).type();
    if (one.backend == "cpu" && type != torch::kCPU && !can_be_staged(type)) {
      refuse_init("backend cpu cannot carry tensors on " + one.device_type +
                  ": LibTorch has no streams for it");
    }
  }
  return std::move(*choice);
}

torch::Device device_of(const DeviceChoice& choice) {
  const torch::DeviceType type = torch::Device(choice.type).type();
  return {type, static_cast<c10::DeviceIndex>(choice.index.value_or(-1))};
}

Timeout choose_timeout(const InitOptions& options, const std::string& backend) {
  if (options.timeout) {
    if (*options.timeout <= Timeout::zero()) refuse_init("timeout must be more than zero");
    return *options.timeout;
  }
  const std::optional<std::string> said = environment_variable("DDPRUN_TIMEOUT");
  if (!said || said->empty()) {
    return backend == "nccl" ? std::chrono::minutes(10) : std::chrono::minutes(30);
  }
  const Result<Duration> timeout = parse_seconds(*said);
  if (!timeout || *timeout <= Duration::zero()) {
    refuse_init("read environment variable DDPRUN_TIMEOUT: invalid value '" + *said +
                "' (expected seconds above zero)");
  }
  return *timeout;
}

Verify choose_verify(const InitOptions& options) {
  if (options.verify) return *options.verify;
  const Result<Verify> said = parse_verify(environment_variable("DDPRUN_VERIFY"));
  if (!said) refuse_init("read environment variable DDPRUN_VERIFY: " + said.error().message());
  return *said;
}

}  // namespace

struct Context::Impl {
  WorkerEnv env;
  torch::Device device;
  std::shared_ptr<WorkerReporter> reporter;
  std::unique_ptr<WorldStore> store;           // null in a world of one; outlives the groups
  std::unique_ptr<WorldGroupFactory> factory;  // outlives the groups, too
  std::unique_ptr<ProcessGroup> group;         // of all ranks

  // Forms the group of all ranks.
  Result<void> form_world(const InitOptions& options, const StartPlan& plan, BackendChoice backends,
                          const BackendFactory* nccl) {
    const Duration timeout = choose_timeout(options, backends.main_backend());
    const Deadline deadline(timeout);
    if (nccl && device.is_cuda()) {
      const Result<void> selected = nccl->select_device(device.index());
      if (!selected) return selected;
    }
    if (plan.meet_at != MeetAt::kNowhere) {
      Result<std::unique_ptr<WorldStore>> found =
          WorldStore::open({.plan = plan,
                            .given = options.store,
                            .local_address = options.local_address,
                            .timeout = timeout});
      if (!found) return found.error();
      store = std::move(*found);
    }
    factory = std::make_unique<WorldGroupFactory>(WorldGroupFactoryOptions{
        .env = env,
        .device = device,
        .backends = std::move(backends),
        .nccl = nccl,
        .custom_backends = options.more_backends,
        .store = store.get(),
        .reporter = reporter,
        .timeout = timeout,
        .verify = choose_verify(options),
        .deterministic_across_layouts = options.deterministic_across_layouts,
        .compare_calls = options.compare_calls});
    Result<std::unique_ptr<ProcessGroup>> formed = factory->form_world(deadline.remaining());
    if (!formed) {
      // The store holds the reason for the others: the ranks that did not come.
      if (store) store->await_leave(kFailedLeavePatience);
      return formed.error();
    }
    group = std::move(*formed);
    if (store) store->world_is_formed();
    return {};
  }

  // Rank 0 ends the store that it hosts when the others have left it, too, because they may still
  // form groups. It does not wait if the world has failed.
  ~Impl() {
    if (!group) return;                     // the group was never formed
    if (!reporter->is_of_this_process()) {  // a fork's child: its parent still serves the store
      static_cast<void>(store.release());
      return;
    }
    const bool is_well = !factory->world_has_failed() && std::uncaught_exceptions() == 0;
    group.reset();  // the others see at once that this rank has left
    // Destructors that run at exit after this may abort the process, but they undo no work.
    if (is_well) reporter->report_finished(true);
    if (!store || !is_well || store->await_leave(kSilentLeave)) return;
    TORCH_WARN("ddprun: rank 0 has ended, but the store that it hosts waits up to ",
               to_text(kLeavePatience), " for the ranks that are still connected to it");
    store->await_leave(kLeavePatience - kSilentLeave);
  }
};

Context init_with(const InitOptions& options, BackendFactory* nccl) {
  return with_dist_errors("ddprun::init", [&] {
    const Result<StartPlan> plan = plan_start({.init_method = options.init_method,
                                               .rank = options.rank,
                                               .world_size = options.world_size,
                                               .has_store = options.store != nullptr},
                                              environment_variable);
    if (!plan) throw to_dist_error(plan.error().within("ddprun::init"));
    const WorkerEnv& env = plan->env;
    write_uncaught_exceptions_to(env.error_file);
    listen_for_save_requests(env.checkpoint_signal);

    BackendChoice backends = choose(options, env.local_rank, nccl);
    std::unique_ptr<Context::Impl> impl(new Context::Impl{
        .env = env, .device = device_of(backends.device), .reporter = WorkerReporter::open(env)});
    impl->reporter->report_finished(false);
    const Result<void> formed = impl->form_world(options, *plan, std::move(backends), nccl);
    if (!formed) {
      throw to_dist_error(formed.error().within(
          concat("ddprun::init of rank ", to_text(env.rank), " of ", env.world_size)));
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

void Context::manual_seed(std::uint64_t seed) const { torch::manual_seed(seed + rank()); }

std::unique_ptr<ProcessGroup> Context::new_group(const std::vector<int>& ranks,
                                                 const GroupOptions& options) {
  const auto refuse_group = [](const std::string& why) { refuse("new_group: " + why); };
  std::vector<int> members = ranks;
  std::ranges::sort(members);
  if (members.empty()) refuse_group("ranks must hold at least one rank");
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] < 0 || members[i] >= world_size()) {
      refuse_group(concat("rank ", members[i], " is not a rank of the world; its ranks are 0 to ",
                          world_size() - 1));
    }
    if (i > 0 && members[i] == members[i - 1]) {
      refuse_group(concat("rank ", members[i], " is given twice"));
    }
  }
  if (options.timeout && *options.timeout <= Timeout::zero()) {
    refuse_group("timeout must be more than zero");
  }
  if (!std::ranges::binary_search(members, rank())) return nullptr;
  return with_dist_errors("new_group",
                          [&] { return value_or_throw(impl_->factory->form(members, options)); });
}

bool Context::save_requested() {
  if (!may_be_asked_to_save()) return false;  // the same on every rank
  return any_rank_requests(group(), {save_was_requested()})[0];
}

bool Context::may_be_asked_to_save() const { return impl_->env.checkpoint_signal != 0; }

void Context::report_progress(std::int64_t step, std::int64_t total) {
  impl_->reporter->report_step(step, total);
}
void Context::report_activity() { impl_->reporter->report_activity(); }

std::function<void(std::int64_t)> Context::checkpoint_announcer() const {
  // No other launcher reads the announcement in its store.
  if (!environment_variable("DDPRUN_GENERATION")) return [](std::int64_t) {};
  return [env = impl_->env](std::int64_t step) {
    const Result<void> announced = announce_checkpoint(env, step);
    if (!announced) TORCH_WARN(announced.error().message());
  };
}

}  // namespace ddprun
