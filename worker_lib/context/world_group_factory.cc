#include "worker_lib/context/world_group_factory.h"

#include <algorithm>
#include <numeric>

#include "base/deadline.h"
#include "base/worker_page.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/cpu_backend/backend_cpu.h"
#include "worker_lib/cpu_group/solo_group.h"
#include "worker_lib/flight/worker_reporter.h"
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
std::string key_of(const std::vector<int>& ranks) {
  constexpr std::size_t kLongest = 200;
  std::string text;
  for (const int rank : ranks) {
    if (!text.empty()) text += ",";
    text += std::to_string(rank);
  }
  if (text.size() <= kLongest) return text;
  return std::to_string(ranks.size()) + " ranks " + std::to_string(flight_digest(ranks));
}

// Returns the id of a key, for the flight record; never 0, which is the world.
std::uint64_t id_of(const std::string& key) {
  std::uint64_t digest = 0xcbf29ce484222325;
  for (const char byte : key) {
    digest = (digest ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return std::max<std::uint64_t>(digest, 1);
}

constexpr const char* kNotHere =
    ", which this rank has not called: a call goes to the backend of its tensors' device";

}  // namespace

// The engines of a group's backends, while they live; set before the first call.
struct WorldGroupFactory::Siblings {
  std::weak_ptr<CpuGroup> cpu;
  std::weak_ptr<CpuGroup> nccl;  // its peers
};

WorldGroupFactory::WorldGroupFactory(WorldGroupFactoryOptions options)
    : options_(std::move(options)) {
  if (options_.store) store_ = std::make_shared<LockedStore>(options_.store->store());
}

Result<std::unique_ptr<ProcessGroup>> WorldGroupFactory::form_world(Duration timeout,
                                                                    const CpuGroup** peers) {
  GroupBootstrap bootstrap{.own = world_rank(),
                           .deterministic_across_layouts = options_.deterministic_across_layouts,
                           .timeout = timeout};
  bootstrap.ranks.resize(world_size());
  std::iota(bootstrap.ranks.begin(), bootstrap.ranks.end(), 0);
  if (options_.store) bootstrap.key = options_.store->name();
  Result<std::unique_ptr<Backend>> backend = form_backends(bootstrap, peers);
  if (!backend) return backend.error();
  world_ = *peers;
  return make_group(std::move(*backend), options_.timeout,
                    {.name = "world", .world_ranks = std::move(bootstrap.ranks), .factory = this});
}

Result<std::unique_ptr<ProcessGroup>> WorldGroupFactory::form(const std::vector<int>& ranks,
                                                              const GroupOptions& how,
                                                              std::optional<Duration> patience,
                                                              std::shared_ptr<void> seed) {
  const std::string of_ranks = key_of(ranks);
  int before = 0;
  {
    const std::lock_guard lock(making_);
    before = made_[of_ranks]++;
  }
  GroupIdentity identity{.name = how.name, .world_ranks = ranks, .factory = this};
  if (identity.name.empty()) identity.name = of_ranks;
  GroupBootstrap bootstrap{
      .ranks = ranks,
      .own = static_cast<int>(std::ranges::find(ranks, world_rank()) - ranks.begin()),
      .key = "group/" + of_ranks + "/" + std::to_string(before),
      .deterministic_across_layouts =
          how.deterministic_across_layouts.value_or(options_.deterministic_across_layouts),
      .timeout = patience.value_or(how.timeout.value_or(options_.timeout)),
      .seed = std::move(seed)};
  if (options_.store) bootstrap.key = options_.store->name() + "/" + bootstrap.key;
  identity.id = id_of(bootstrap.key);
  bootstrap.title = " in group " + identity.name;
  if (!how.name.empty()) bootstrap.title += " of the world's " + name_ranks(ranks);

  const CpuGroup* peers = nullptr;
  Result<std::unique_ptr<Backend>> backend = form_backends(bootstrap, &peers);
  if (!backend) return backend.error().within("form group " + identity.name);
  options_.reporter->register_group(identity.id, identity.name, ranks);
  return make_group(std::move(*backend), how.timeout.value_or(options_.timeout),
                    std::move(identity));
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
Result<std::unique_ptr<Backend>> WorldGroupFactory::form_backends(const GroupBootstrap& bootstrap,
                                                                  const CpuGroup** peers) {
  const Deadline deadline(bootstrap.timeout);
  std::vector<std::string> names{options_.backends.main_backend()};
  std::string list;
  for (const BackendChoice::Server& one : options_.backends.servers) {
    if (std::ranges::count(names, one.backend) == 0) names.push_back(one.backend);
    if (!list.empty()) list += ",";
    list += one.device_type + ":" + one.backend;
  }
  const auto siblings = names.size() > 1 ? std::make_shared<Siblings>() : nullptr;
  std::vector<BackendByDevice::Part> parts;
  for (const std::string& name : names) {
    BackendByDevice::Part part;
    for (const BackendChoice::Server& one : options_.backends.servers) {
      if (one.backend == name) part.devices.push_back(torch::Device(one.device_type).type());
    }
    GroupBootstrap of_part = bootstrap;
    of_part.timeout = deadline.remaining();
    of_part.siblings = siblings;
    if (!parts.empty()) {  // the seed is for the main backend only
      of_part.key += "/" + name;
      of_part.seed.reset();
    }
    Result<std::unique_ptr<Backend>> backend = form_backend(name, part.devices, of_part, peers);
    if (!backend) return backend.error();
    part.backend = std::move(*backend);
    parts.push_back(std::move(part));
  }
  if (parts.size() == 1) return std::move(parts[0].backend);
  return std::unique_ptr<Backend>(new BackendByDevice(std::move(list), std::move(parts)));
}

Result<std::unique_ptr<Backend>> WorldGroupFactory::form_backend(
    const std::string& name, const std::vector<torch::DeviceType>& devices,
    const GroupBootstrap& bootstrap, const CpuGroup** peers) {
  const auto foreign = std::ranges::find(options_.foreign, name, &BackendKind::name);
  if (foreign != options_.foreign.end()) return form_foreign(*foreign, bootstrap);
  const bool is_cpu = name == "cpu";
  Result<std::unique_ptr<CpuGroup>> met =
      meet(bootstrap, is_cpu && bootstrap.siblings ? in_nccl(bootstrap.siblings) : nullptr);
  if (!met) return met.error();
  const std::shared_ptr<CpuGroup> group = std::move(*met);
  *peers = group.get();
  if (bootstrap.siblings) (is_cpu ? bootstrap.siblings->cpu : bootstrap.siblings->nccl) = group;
  if (is_cpu) return std::unique_ptr<Backend>(new CpuBackend(group, devices));
  return options_.nccl->make(
      store_,
      {.rank = bootstrap.own,
       .world_size = static_cast<int>(bootstrap.ranks.size()),
       .device = options_.device,
       .name = bootstrap.key,
       .title = bootstrap.title,
       .compare_calls = options_.compare_calls,
       .elsewhere = bootstrap.siblings ? in_cpu(bootstrap.siblings) : nullptr},
      group, bootstrap.seed);
}

Result<std::unique_ptr<Backend>> WorldGroupFactory::form_foreign(const BackendKind& kind,
                                                                 const GroupBootstrap& bootstrap) {
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
    return Error{.kind = ErrorKind::kSystem, .doing = doing, .cause = "it gave none"};
  } catch (...) {
    return error_in_flight(doing);
  }
}

Result<std::unique_ptr<CpuGroup>> WorldGroupFactory::meet(const GroupBootstrap& bootstrap,
                                                          Elsewhere elsewhere) {
  if (bootstrap.ranks.size() == 1) return make_solo_group();
  // The node is the launcher's: two nodes of a job may be simulated on one machine. The engine
  // itself finds out whether processes of one node can share memory (same boot of the same
  // kernel, same network namespace). Two containers, or two hosts without numbers, cannot.
  const WorkerEnv& env = options_.env;
  std::function<std::optional<Error>()> fate;
  if (world_) fate = [&] { return lost_member(bootstrap); };
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
                         .fate = fate,
                         .elsewhere = std::move(elsewhere)});
}

// For errors of nccl: names ranks that have not come because their tensors are on the CPU.
WorldGroupFactory::Elsewhere WorldGroupFactory::in_cpu(std::shared_ptr<const Siblings> siblings) {
  return [siblings](std::span<const int> ranks) -> std::string {
    const std::shared_ptr<CpuGroup> cpu = siblings->cpu.lock();
    if (!cpu) return {};
    std::vector<int> there;
    for (const int rank : cpu->ranks_ahead(kNotePatience)) {
      if (std::ranges::find(ranks, rank) != ranks.end()) there.push_back(rank);
    }
    if (there.empty()) return {};
    return name_ranks(there) + (there.size() == 1 ? " has" : " have") +
           " begun a collective of the cpu backend" + kNotHere;
  };
}

// For errors of the cpu backend: the reverse.
WorldGroupFactory::Elsewhere WorldGroupFactory::in_nccl(std::shared_ptr<const Siblings> siblings) {
  return [siblings](std::span<const int> ranks) -> std::string {
    const std::shared_ptr<CpuGroup> peers = siblings->nccl.lock();
    if (!peers) return {};
    const std::string calls = find_ahead(ranks, peers->rank(), read_notes(*peers, kNotePatience));
    return calls.empty() ? "" : calls + kNotHere;
  };
}

// Returns the failure of a member that the world knows to be dead. Other failures of the world's
// group need not keep these ranks from forming theirs.
std::optional<Error> WorldGroupFactory::lost_member(const GroupBootstrap& bootstrap) const {
  std::optional<Error> failure = world_ ? world_->failure() : std::nullopt;
  if (!failure || failure->kind != ErrorKind::kPeerLost) return std::nullopt;
  const auto lost = std::ranges::find(bootstrap.ranks, failure->peer_rank);
  if (lost == bootstrap.ranks.end()) return std::nullopt;
  failure->peer_rank = static_cast<int>(lost - bootstrap.ranks.begin());
  return failure;
}

}  // namespace ddprun
