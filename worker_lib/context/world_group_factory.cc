#include "worker_lib/context/world_group_factory.h"

#include <algorithm>
#include <numeric>

#include "base/concat.h"
#include "base/deadline.h"
#include "base/fnv1a.h"
#include "base/joined.h"
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
  std::vector<std::string> numbers;
  for (const int rank : ranks) numbers.push_back(std::to_string(rank));
  const std::string text = joined(numbers, ",");
  if (text.size() <= kLongest) return text;
  return concat(ranks.size(), " ranks ", flight_digest(ranks));
}

constexpr const char* kNotCalledHere =
    ", which this rank has not called: a call goes to the backend of its tensors' device";

}  // namespace

// Forms one group.
class WorldGroupFactory::Forming {
 public:
  // ranks: of the world. start: what all backends get; rank, size, device and store are filled in.
  // Its name is the key under which the members of the group find each other. Its title is "" for
  // the world, else " in group tp of ranks 1 and 3".
  Forming(WorldGroupFactory& world, std::vector<int> ranks, bool deterministic_across_layouts,
          BackendStart start)
      : world_(world),
        options_(world.options_),
        ranks_(std::move(ranks)),
        deterministic_across_layouts_(deterministic_across_layouts),
        start_(std::move(start)) {
    start_.rank = std::ranges::find(ranks_, options_.env.rank.value) - ranks_.begin();
    start_.size = ranks_.size();
    start_.device = options_.device;
    if (ranks_.size() > 1) start_.store = world.store_.get();
  }

  // timeout: of the group's calls.
  Result<std::unique_ptr<ProcessGroup>> form(GroupIdentity identity, Duration timeout) {
    Result<std::unique_ptr<Backend>> backend = form_backends();
    if (!backend) return backend.error();
    identity.world_ranks = ranks_;
    identity.factory = &world_;
    auto group =
        std::make_unique<ProcessGroup>(std::move(*backend), options_.device, timeout,
                                       options_.reporter, std::move(identity), options_.verify);
    group->notes()->late_checks = world_.late_checks_;
    return group;
  }

  // Returns the CPU engines inside the group's backends. They know whether the group has failed.
  const std::vector<const CpuGroup*>& engines() const { return engines_; }

 private:
  // The CPU engine of each backend of one group. Each is set when its backend is formed, and
  // expires with it.
  struct BackendGroups {
    std::weak_ptr<CpuGroup> cpu;
    std::weak_ptr<CpuGroup> nccl;  // the peers of the nccl backend
  };

  // Forms one backend for each name. The backend of this rank's device is first, and its ranks
  // find each other under the group's own key.
  Result<std::unique_ptr<Backend>> form_backends() {
    const Deadline deadline(start_.timeout);
    std::vector<std::string> names{options_.backends.main_backend()};
    std::vector<std::string> list;
    for (const BackendChoice::Server& one : options_.backends.servers) {
      if (std::ranges::count(names, one.backend) == 0) names.push_back(one.backend);
      list.push_back(one.device_type + ":" + one.backend);
    }
    if (names.size() > 1) backend_groups_ = std::make_shared<BackendGroups>();
    std::vector<BackendPart> parts;
    for (const std::string& name : names) {
      BackendPart part;
      for (const BackendChoice::Server& one : options_.backends.servers) {
        if (one.backend == name) part.devices.push_back(torch::Device(one.device_type).type());
      }
      BackendStart start = start_;
      start.timeout = deadline.remaining();
      if (!parts.empty()) start.name += "/" + name;
      start.seed = std::exchange(start_.seed, nullptr);  // for the main backend only
      Result<std::unique_ptr<Backend>> formed = form_backend(name, part.devices, start);
      if (!formed) return formed;
      part.backend = std::move(*formed);
      parts.push_back(std::move(part));
    }
    if (parts.size() == 1) return std::move(parts[0].backend);
    return backend_by_device(joined(list, ","), std::move(parts));
  }

  Result<std::unique_ptr<Backend>> form_backend(const std::string& name,
                                                const std::vector<torch::DeviceType>& devices,
                                                const BackendStart& start) {
    const auto custom = std::ranges::find(options_.custom_backends, name, &BackendKind::name);
    if (custom != options_.custom_backends.end()) return form_custom_backend(*custom, start);
    const bool is_cpu = name == "cpu";
    Result<std::unique_ptr<CpuGroup>> formed = form_cpu_group(
        start, is_cpu && backend_groups_ ? explain_by_nccl_calls(backend_groups_) : nullptr);
    if (!formed) return formed.error();
    const std::shared_ptr<CpuGroup> group = std::move(*formed);
    engines_.push_back(group.get());
    if (backend_groups_) (is_cpu ? backend_groups_->cpu : backend_groups_->nccl) = group;
    if (is_cpu) return make_cpu_backend(group, devices);
    return options_.nccl->make(
        world_.store_,
        {.rank = start.rank,
         .world_size = start.size,
         .device = start.device,
         .name = start.name,
         .title = start.title,
         .compare_calls = options_.compare_calls,
         .explain_absence = backend_groups_ ? explain_by_cpu_calls(backend_groups_) : nullptr},
        group, start.seed);
  }

  static Result<std::unique_ptr<Backend>> form_custom_backend(const BackendKind& kind,
                                                              const BackendStart& start) {
    const std::string doing = "make a backend " + kind.name + start.title;
    try {
      std::unique_ptr<Backend> backend = kind.make(start);
      if (backend) return backend;
      return Error{.kind = ErrorKind::kSystem, .doing = doing, .cause = "its make() returned null"};
    } catch (...) {
      return error_in_flight(doing);
    }
  }

  Result<std::unique_ptr<CpuGroup>> form_cpu_group(const BackendStart& start,
                                                   AbsenceExplainer explain_absence) const {
    if (start.size == 1) return make_solo_group();
    // The node is the launcher's: two nodes of a job may be simulated on one machine. The engine
    // itself finds out whether processes of one node can share memory (same boot of the same
    // kernel, same network namespace). Two containers, or two hosts without numbers, cannot.
    const WorkerEnv& env = options_.env;
    std::function<std::optional<Error>()> check_members;
    if (!world_.world_engines_.empty()) check_members = [this] { return lost_member(); };
    return CpuGroup::form(*start.store,
                          {.rank = Rank(start.rank),
                           .world_size = start.size,
                           .node_id = "node " + to_text(env.node_rank),
                           .name = start.name,
                           .title = start.title,
                           .page = options_.reporter->place(),
                           .address = options_.store->address(),
                           .ports = env.ports,
                           .node_silence = env.lease,
                           .deterministic_across_layouts = deterministic_across_layouts_,
                           .checks = words_of(options_.verify),
                           .timeout = start.timeout,
                           .check_members = check_members,
                           .explain_absence = std::move(explain_absence)});
  }

  // Explains a timeout of nccl: returns which of the missing ranks have called the cpu backend
  // instead.
  static AbsenceExplainer explain_by_cpu_calls(std::shared_ptr<const BackendGroups> groups) {
    return [groups](std::span<const int> ranks) -> std::string {
      const std::shared_ptr<CpuGroup> cpu = groups->cpu.lock();
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
  static AbsenceExplainer explain_by_nccl_calls(std::shared_ptr<const BackendGroups> groups) {
    return [groups](std::span<const int> ranks) -> std::string {
      const std::shared_ptr<CpuGroup> peers = groups->nccl.lock();
      if (!peers) return {};
      const std::string calls = find_ahead(ranks, peers->rank(), read_notes(*peers, kNotePatience));
      return calls.empty() ? "" : calls + kNotCalledHere;
    };
  }

  // Returns the failure of a member that the world knows to be dead. Other failures of the world's
  // group need not keep these ranks from forming theirs.
  std::optional<Error> lost_member() const {
    for (const CpuGroup* engine : world_.world_engines_) {
      std::optional<Error> failure = engine->failure();
      if (!failure || failure->kind != ErrorKind::kPeerLost) continue;
      const auto lost = std::ranges::find(ranks_, failure->peer_rank);
      if (lost == ranks_.end()) continue;
      failure->peer_rank = lost - ranks_.begin();
      return failure;
    }
    return std::nullopt;
  }

  WorldGroupFactory& world_;
  const WorldGroupFactoryOptions& options_;
  const std::vector<int> ranks_;
  const bool deterministic_across_layouts_;
  BackendStart start_;
  std::shared_ptr<BackendGroups> backend_groups_;  // of a group of several backends
  std::vector<const CpuGroup*> engines_;
};

WorldGroupFactory::WorldGroupFactory(WorldGroupFactoryOptions options)
    : options_(std::move(options)) {
  if (options_.store) store_ = locked_store(options_.store->store());
}

Result<std::unique_ptr<ProcessGroup>> WorldGroupFactory::form_world(Duration timeout) {
  std::vector<int> ranks(options_.env.world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  Forming forming(
      *this, std::move(ranks), options_.deterministic_across_layouts,
      {.name = options_.store ? options_.store->name() : "", .title = "", .timeout = timeout});
  Result<std::unique_ptr<ProcessGroup>> formed = forming.form({}, options_.timeout);
  if (formed) world_engines_ = forming.engines();
  return formed;
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
  const Duration timeout = options.timeout.value_or(options_.timeout);
  const std::string name = options.name.empty() ? ranks_key : options.name;
  std::string key = concat("group/", ranks_key, "/", earlier_groups);
  if (options_.store) key = options_.store->name() + "/" + key;
  const std::uint64_t id = std::max<std::uint64_t>(fnv1a(key), 1);  // 0 is the world
  std::string title = " in group " + name;
  if (!options.name.empty()) title += " of the world's " + name_ranks(ranks);

  Forming forming(
      *this, ranks,
      options.deterministic_across_layouts.value_or(options_.deterministic_across_layouts),
      {.name = std::move(key),
       .title = std::move(title),
       .timeout = timeout_override.value_or(timeout),
       .seed = std::move(seed)});
  Result<std::unique_ptr<ProcessGroup>> formed = forming.form({.name = name, .id = id}, timeout);
  if (!formed) return formed.error().within("form group " + name);
  options_.reporter->register_group(id, name, ranks);
  return formed;
}

bool WorldGroupFactory::world_has_failed() const {
  return std::ranges::any_of(world_engines_,
                             [](const CpuGroup* engine) { return engine->failure().has_value(); });
}

}  // namespace ddprun
