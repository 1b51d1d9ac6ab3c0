#include "worker_lib/group_maker.h"

#include <algorithm>
#include <numeric>

#include "base/deadline.h"
#include "base/worker_page.h"
#include "worker_lib/backend_cpu.h"
#include "worker_lib/backend_nccl.h"
#include "worker_lib/cpu/rank_names.h"
#include "worker_lib/cpu/solo_group.h"

namespace ddprun {
namespace {

// "0,2,3"; of very many ranks a digest, so that keys stay short.
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

// Of a key, for the flight record; never 0, which is the world.
std::uint64_t id_of(const std::string& key) {
  std::uint64_t digest = 0xcbf29ce484222325;
  for (const char byte : key) {
    digest = (digest ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return std::max<std::uint64_t>(digest, 1);
}

}  // namespace

Result<std::unique_ptr<ProcessGroup>> GroupMaker::form_world(Duration timeout,
                                                             const CpuGroup** peers) {
  Meeting meeting{.own = world_rank(), .timeout = timeout};
  meeting.ranks.resize(world_size());
  std::iota(meeting.ranks.begin(), meeting.ranks.end(), 0);
  if (options_.store) meeting.key = options_.store->name();
  Result<std::unique_ptr<Backend>> backend = form_backend(meeting, peers);
  if (!backend) return backend.error();
  return std::make_unique<ProcessGroup>(
      std::move(*backend), options_.device, options_.timeout, options_.reporter,
      GroupIdentity{.name = "world", .world_ranks = std::move(meeting.ranks), .maker = this});
}

Result<std::unique_ptr<ProcessGroup>> GroupMaker::form(const std::vector<int>& ranks,
                                                       const GroupOptions& how) {
  const std::string of_ranks = key_of(ranks);
  const int before = made_[of_ranks]++;
  GroupIdentity identity{.name = how.name, .world_ranks = ranks, .maker = this};
  if (identity.name.empty()) identity.name = of_ranks;
  Meeting meeting{.ranks = ranks,
                  .own = static_cast<int>(std::ranges::find(ranks, world_rank()) - ranks.begin()),
                  .key = "group/" + of_ranks + "/" + std::to_string(before),
                  .timeout = how.timeout.value_or(options_.timeout)};
  if (options_.store) meeting.key = options_.store->name() + "/" + meeting.key;
  identity.id = id_of(meeting.key);
  meeting.title = " in group " + identity.name;
  if (!how.name.empty()) meeting.title += " of the world's " + name_ranks(ranks);

  const CpuGroup* peers = nullptr;
  Result<std::unique_ptr<Backend>> backend = form_backend(meeting, &peers);
  if (!backend) return backend.error().within("form group " + identity.name);
  options_.reporter->register_group(identity.id, identity.name, ranks);
  return std::make_unique<ProcessGroup>(std::move(*backend), options_.device, meeting.timeout,
                                        options_.reporter, std::move(identity));
}

Result<std::unique_ptr<Backend>> GroupMaker::form_backend(const Meeting& meeting,
                                                          const CpuGroup** peers) {
  const Deadline deadline(meeting.timeout);
  Result<std::unique_ptr<CpuGroup>> group = meet(meeting);
  if (!group) return group.error();
  *peers = group->get();
  if (!options_.nccl) return std::unique_ptr<Backend>(new CpuBackend(std::move(*group)));
  return options_.nccl->form(meeting.ranks.size() == 1 ? nullptr : options_.store->store().get(),
                             {.rank = Rank(meeting.own),
                              .world_size = static_cast<int>(meeting.ranks.size()),
                              .device = options_.device,
                              .name = meeting.key,
                              .title = meeting.title,
                              .timeout = deadline.remaining()},
                             std::move(*group));
}

Result<std::unique_ptr<CpuGroup>> GroupMaker::meet(const Meeting& meeting) {
  if (meeting.ranks.size() == 1) return make_solo_group();
  // The launcher's node: two nodes of a job may be simulated on one machine. Whether processes of
  // one node can share memory at all (same boot of the same kernel, same network namespace: not so
  // in two containers, nor on two hosts that nobody has numbered) the engine finds out by itself.
  const WorkerEnv& env = options_.env;
  return CpuGroup::form(*options_.store->store(),
                        {.rank = Rank(meeting.own),
                         .world_size = static_cast<int>(meeting.ranks.size()),
                         .node_id = "node " + to_text(env.node_rank),
                         .name = meeting.key,
                         .title = meeting.title,
                         .address = options_.store->address(),
                         .ports = env.ports,
                         .node_silence = env.lease,
                         .timeout = meeting.timeout});
}

}  // namespace ddprun
