#include "worker_lib/context/world_group_factory.h"

#include <algorithm>
#include <numeric>

#include "base/deadline.h"
#include "base/fnv1a.h"
#include "base/worker_page.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/cpu_backend/backend_cpu.h"
#include "worker_lib/cpu_group/solo_group.h"
#include "worker_lib/group/backend_by_device.h"
#include "worker_lib/group/notes.h"
#include "worker_lib/group/verification.h"
#include "worker_lib/nccl/backend_nccl.h"
#include "worker_lib/nccl/collective_log.h"
#include "worker_lib/store/locked_store.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

// Returns "0,2,3"; for very many ranks a digest, so that keys stay short.
std::string group_key(const std::vector<int>& ranks) {
  constexpr std::size_t kLongest = 200;
  std::string text;
  for (const int rank : ranks) {
    if (!text.empty()) text += ",";
    text += std::to_string(rank);
  }
  if (text.size() <= kLongest) return text;
  return std::to_string(ranks.size()) + " ranks " + std::to_string(flight_digest(ranks));
}

// Returns the id of a group for the flight record: FNV-1a of its key in the store. Never 0,
// which is the world.
std::uint64_t flight_id(const std::string& key) { return std::max<std::uint64_t>(fnv1a(key), 1); }

constexpr const char* kNotCalledHere =
    ", which this rank has not called: a call goes to the backend of its tensors' device";

}  // namespace

// The CPU engine of each backend of one group. Each is set when its backend is formed, and
// expires with it.
struct WorldGroupFactory::BackendGroups {
  std::weak_ptr<CpuGroup> cpu;
  std::weak_ptr<CpuGroup> nccl;  // the peers of the nccl backend
};

WorldGroupFactory::WorldGroupFactory(WorldGroupFactoryOptions options)
    : options_(std::move(options)) {
  if (options_.store) store_ = locked_store(options_.store->store());
}

Result<std::unique_ptr<ProcessGroup>> WorldGroupFactory::form_world(Duration timeout) {
  GroupBootstrap bootstrap{.own = world_rank(),
                           .deterministic_across_layouts = options_.deterministic_across_layouts,
                           .timeout = timeout};
  bootstrap.ranks.resize(world_size());
  std::iota(bootstrap.ranks.begin(), bootstrap.ranks.end(), 0);
  if (options_.store) bootstrap.key = options_.store->name();
  Result<FormedBackend> formed = form_backends(bootstrap);
  if (!formed) return formed.error();
  world_engines_ = std::move(formed->engines);
  return make_group(std::move(formed->backend), options_.timeout,
                    {.name = "world", .world_ranks = std::move(bootstrap.ranks), .factory = this});
}

Result<std::unique_ptr<ProcessGroup>> WorldGroupFactory::form(
    const std::vector<int>& ranks, const GroupOptions& options,
    std::optional<Duration> timeout_override, std::shared_ptr<void> seed) {
  const std::string ranks_key = group_key(ranks);
  int earlier_groups = 0;
  {
    const std::lock_guard lock(counts_mutex_);
    earlier_groups = groups_of_ranks_[ranks_key]++;
  }
  GroupIdentity identity{.name = options.name, .world_ranks = ranks, .factory = this};
  if (identity.name.empty()) identity.name = ranks_key;
  GroupBootstrap bootstrap{
      .ranks = ranks,
      .own = static_cast<int>(std::ranges::find(ranks, world_rank()) - ranks.begin()),
      .key = "group/" + ranks_key + "/" + std::to_string(earlier_groups),
      .deterministic_across_layouts =
          options.deterministic_across_layouts.value_or(options_.deterministic_across_layouts),
      .timeout = timeout_override.value_or(options.timeout.value_or(options_.timeout)),
      .seed = std::move(seed)};
  if (options_.store) bootstrap.key = options_.store->name() + "/" + bootstrap.key;
  identity.id = flight_id(bootstrap.key);
  bootstrap.title = " in group " + identity.name;
  if (!options.name.empty()) bootstrap.title += " of the world's " + name_ranks(ranks);

  Result<FormedBackend> formed = form_backends(bootstrap);
  if (!formed) return formed.error().within("form group " + identity.name);
  options_.reporter->register_group(identity.id, identity.name, ranks);
  return make_group(std::move(formed->backend), options.timeout.value_or(options_.timeout),
                    std::move(identity));
}

bool WorldGroupFactory::world_has_failed() const {
  return std::ranges::any_of(world_engines_,
                             [](const CpuGroup* engine) { return engine->failure().has_value(); });
}

std::unique_ptr<ProcessGroup> WorldGroupFactory::make_group(std::unique_ptr<Backend> backend,
                                                            Duration timeout,
                                                            GroupIdentity identity) const {
  auto group =
      std::make_unique<ProcessGroup>(std::move(backend), options_.device, timeout,
                                     options_.reporter, std::move(identity), options_.verify);
  group->notes()->late_checks = late_checks_;
  return group;
}

// Forms one backend for each name. The backend of this rank's device is first, and its ranks
// find each other under the group's own key.
Result<WorldGroupFactory::FormedBackend> WorldGroupFactory::form_backends(
    const GroupBootstrap& bootstrap) {
  const Deadline deadline(bootstrap.timeout);
  std::vector<std::string> names{options_.backends.main_backend()};
  std::string list;
  for (const BackendChoice::Server& one : options_.backends.servers) {
    if (std::ranges::count(names, one.backend) == 0) names.push_back(one.backend);
    if (!list.empty()) list += ",";
    list += one.device_type + ":" + one.backend;
  }
  const auto backend_groups = names.size() > 1 ? std::make_shared<BackendGroups>() : nullptr;
  std::vector<const CpuGroup*> engines;
  std::vector<BackendPart> parts;
  for (const std::string& name : names) {
    BackendPart part;
    for (const BackendChoice::Server& one : options_.backends.servers) {
      if (one.backend == name) part.devices.push_back(torch::Device(one.device_type).type());
    }
    GroupBootstrap of_part = bootstrap;
    of_part.timeout = deadline.remaining();
    of_part.backend_groups = backend_groups;
    if (!parts.empty()) {  // the seed is for the main backend only
      of_part.key += "/" + name;
      of_part.seed.reset();
    }
    Result<FormedBackend> formed = form_backend(name, part.devices, of_part);
    if (!formed) return formed.error();
    part.backend = std::move(formed->backend);
    engines.insert(engines.end(), formed->engines.begin(), formed->engines.end());
    parts.push_back(std::move(part));
  }
  if (parts.size() == 1) return FormedBackend{std::move(parts[0].backend), std::move(engines)};
  return FormedBackend{backend_by_device(std::move(list), std::move(parts)), std::move(engines)};
}

Result<WorldGroupFactory::FormedBackend> WorldGroupFactory::form_backend(
    const std::string& name, const std::vector<torch::DeviceType>& devices,
    const GroupBootstrap& bootstrap) {
  const auto custom = std::ranges::find(options_.custom_backends, name, &BackendKind::name);
  if (custom != options_.custom_backends.end()) {
    Result<std::unique_ptr<Backend>> backend = form_custom_backend(*custom, bootstrap);
    if (!backend) return backend.error();
    return FormedBackend{.backend = std::move(*backend), .engines = {}};
  }
  const bool is_cpu = name == "cpu";
  Result<std::unique_ptr<CpuGroup>> formed =
      form_cpu_group(bootstrap, is_cpu && bootstrap.backend_groups
                                    ? explain_by_nccl_calls(bootstrap.backend_groups)
                                    : nullptr);
  if (!formed) return formed.error();
  const std::shared_ptr<CpuGroup> group = std::move(*formed);
  if (bootstrap.backend_groups) {
    (is_cpu ? bootstrap.backend_groups->cpu : bootstrap.backend_groups->nccl) = group;
  }
  if (is_cpu) return FormedBackend{make_cpu_backend(group, devices), {group.get()}};
  Result<std::unique_ptr<Backend>> backend = options_.nccl->make(
      store_,
      {.rank = bootstrap.own,
       .world_size = static_cast<int>(bootstrap.ranks.size()),
       .device = options_.device,
       .name = bootstrap.key,
       .title = bootstrap.title,
       .compare_calls = options_.compare_calls,
       .explain_absence =
           bootstrap.backend_groups ? explain_by_cpu_calls(bootstrap.backend_groups) : nullptr},
      group, bootstrap.seed);
  if (!backend) return backend.error();
  return FormedBackend{std::move(*backend), {group.get()}};
}

Result<std::unique_ptr<Backend>> WorldGroupFactory::form_custom_backend(
    const BackendKind& kind, const GroupBootstrap& bootstrap) {
  const std::string doing = "make a backend " + kind.name + bootstrap.title;
  const BackendStart start{.rank = bootstrap.own,
                           .size = static_cast<int>(bootstrap.ranks.size()),
                           .device = options_.device,
                           .store = bootstrap.ranks.size() == 1 ? nullptr : store_.get(),
                           .name = bootstrap.key,
                           .title = bootstrap.title,
                           .timeout = bootstrap.timeout,
                           .seed = bootstrap.seed};
  try {
    std::unique_ptr<Backend> backend = kind.make(start);
    if (backend) return backend;
    return Error{.kind = ErrorKind::kSystem, .doing = doing, .cause = "its make() returned null"};
  } catch (...) {
    return error_in_flight(doing);
  }
}

Result<std::unique_ptr<CpuGroup>> WorldGroupFactory::form_cpu_group(
    const GroupBootstrap& bootstrap, AbsenceExplainer explain_absence) {
  if (bootstrap.ranks.size() == 1) return make_solo_group();
  // The node is the launcher's: two nodes of a job may be simulated on one machine. The engine
  // itself finds out whether processes of one node can share memory (same boot of the same
  // kernel, same network namespace). Two containers, or two hosts without numbers, cannot.
  const WorkerEnv& env = options_.env;
  std::function<std::optional<Error>()> check_members;
  if (!world_engines_.empty()) check_members = [&] { return lost_member(bootstrap); };
  return CpuGroup::form(*store_,
                        {.rank = Rank(bootstrap.own),
                         .world_size = static_cast<int>(bootstrap.ranks.size()),
                         .node_id = "node " + to_text(env.node_rank),
                         .name = bootstrap.key,
                         .title = bootstrap.title,
                         .page = options_.reporter->place(),
                         .address = options_.store->address(),
                         .ports = env.ports,
                         .node_silence = env.lease,
                         .deterministic_across_layouts = bootstrap.deterministic_across_layouts,
                         .checks = words_of(options_.verify),
                         .timeout = bootstrap.timeout,
                         .check_members = check_members,
                         .explain_absence = std::move(explain_absence)});
}

// Explains a timeout of nccl: returns which of the missing ranks have called the cpu backend
// instead.
AbsenceExplainer WorldGroupFactory::explain_by_cpu_calls(
    std::shared_ptr<const BackendGroups> backend_groups) {
  return [backend_groups](std::span<const int> ranks) -> std::string {
    const std::shared_ptr<CpuGroup> cpu = backend_groups->cpu.lock();
    if (!cpu) return {};
    std::vector<int> there;
    for (const int rank : cpu->ranks_ahead(kNotePatience)) {
      if (std::ranges::find(ranks, rank) != ranks.end()) there.push_back(rank);
    }
    if (there.empty()) return {};
    return name_ranks(there) + (there.size() == 1 ? " has" : " have") +
           " begun a collective of the cpu backend" + kNotCalledHere;
  };
}

// Explains a timeout of the cpu backend: returns which of the missing ranks have called nccl
// instead.
AbsenceExplainer WorldGroupFactory::explain_by_nccl_calls(
    std::shared_ptr<const BackendGroups> backend_groups) {
  return [backend_groups](std::span<const int> ranks) -> std::string {
    const std::shared_ptr<CpuGroup> peers = backend_groups->nccl.lock();
    if (!peers) return {};
    const std::string calls = find_ahead(ranks, peers->rank(), read_notes(*peers, kNotePatience));
    return calls.empty() ? "" : calls + kNotCalledHere;
  };
}

// Returns the failure of a member that the world knows to be dead. Other failures of the world's
// group need not keep these ranks from forming theirs.
std::optional<Error> WorldGroupFactory::lost_member(const GroupBootstrap& bootstrap) const {
  for (const CpuGroup* engine : world_engines_) {
    std::optional<Error> failure = engine->failure();
    if (!failure || failure->kind != ErrorKind::kPeerLost) continue;
    const auto lost = std::ranges::find(bootstrap.ranks, failure->peer_rank);
    if (lost == bootstrap.ranks.end()) continue;
    failure->peer_rank = static_cast<int>(lost - bootstrap.ranks.begin());
    return failure;
  }
  return std::nullopt;
}

}  // namespace ddprun
