// Forms a CpuGroup:
//
//   1  Open a listener for the node (a Unix socket) and one for other nodes (a TCP port).
//   2  Exchange peer infos through the store (peer_info.h).
//   3  Ranks of one node bootstrap and share a segment (node_bootstrap.h).
//   4  Ranks of different nodes connect: the higher-numbered node connects, the lower one accepts.
//
// This takes one round through the store, one through the node's listener, and one connection per
// link.
#include "worker_lib/cpu_group/cpu_group.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include "base/concat.h"
#include "base/parse_number.h"
#include "base/random_id.h"
#include "base/usable_cpus.h"
#include "rendezvous/net/blocking_socket.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/cpu_group/group_core.h"
#include "worker_lib/cpu_group/peer_info.h"
#include "worker_lib/cpu_group/requirements.h"
#include "worker_lib/cpu_group/shared_group.h"
#include "worker_lib/cpu_group/solo_group.h"
#include "worker_lib/cpu_peers/node_bootstrap.h"
#include "worker_lib/cpu_shm/core/node_layout.h"

namespace ddprun {
namespace {

constexpr const char* kConnecting = "connect to the other nodes";
constexpr Duration kConnectTimeout = std::chrono::milliseconds(50);

std::optional<Error> lost_member(const CpuGroupOptions& options) {
  return options.check_members ? options.check_members() : std::nullopt;
}

std::string cpus_text(const std::vector<int>& cpus) {
  std::string text(cpus.back() + 1, '0');
  for (const int cpu : cpus) text[cpu] = '1';
  return text;
}

// Maps the page that a neighbour has shown; nullopt: there is none that can be read.
std::optional<MappedPages> page_of(const PeerInfo& info, const UniqueFd& file) {
  const auto offset = parse_number<std::size_t>(info.page_offset);
  if (!offset) return std::nullopt;
  return MappedPages::map({.file = file.get(), .offset = *offset}, MappedPages::Access::kRead);
}

// Returns the machines with more ranks than processors, counting the processors that at least
// one of these ranks may use. (Several nodes may be containers of one machine.)
std::set<std::string> crowded_machines(const std::vector<PeerInfo>& peers) {
  struct Machine {
    std::size_t ranks = 0;
    std::set<std::size_t> cores;
  };
  std::map<std::string, Machine> machines;
  for (const PeerInfo& info : peers) {
    Machine& machine = machines[info.machine];
    ++machine.ranks;
    for (std::size_t cpu = 0; cpu < info.cpus.size(); ++cpu) {
      if (info.cpus[cpu] == '1') machine.cores.insert(cpu);
    }
  }
  std::set<std::string> crowded;
  for (const auto& [name, machine] : machines) {
    if (machine.ranks > machine.cores.size()) crowded.insert(name);
  }
  return crowded;
}

// --- connections between nodes ---

// Returns whether the listener at the address has closed. Returns false if the host does not
// answer at once.
bool is_closed(const HostPort& address) {
  const std::optional<SocketAddress> numeric = numeric_address(address);
  if (!numeric) return false;
  const Result<BlockingSocket> socket =
      BlockingSocket::connect(*numeric, Deadline(kConnectTimeout));
  return !socket && socket.error().sys_errno == ECONNREFUSED;
}

class Connector {
 public:
  Connector(GroupParts& parts, const Deadline& deadline, const CpuGroupOptions& options)
      : parts_(parts), deadline_(deadline), options_(options) {}

  Result<void> connect() {
    const GroupTopology& here = parts_.here;
    parts_.data_sockets.resize(here.layout.node_count());
    parts_.listener->expect(parts_.token, here.rank, here.layout.world_size());
    for (const PeerLink& link : links_of(here.layout, here.rank)) {
      const bool call = here.layout.node_of[link.peer] < here.node;
      for (const ConnectionUse use : {ConnectionUse::kControl, ConnectionUse::kData}) {
        if (use == ConnectionUse::kData && !link.carries_data) continue;
        if (!call) {
          expected_.insert({link.peer, use});
          continue;
        }
        Result<UniqueFd> socket = connect_to_peer(parts_.addresses[link.peer], parts_.token,
                                                  here.rank, link.peer, use, deadline_);
        if (!socket) return socket.error();
        keep(link.peer, use, std::move(*socket));
      }
    }
    return admit_expected();
  }

 private:
  void keep(int peer, ConnectionUse use, UniqueFd socket) {
    if (use == ConnectionUse::kControl) {
      parts_.watch.links.push_back({peer, std::move(socket)});
    } else {
      parts_.data_sockets[parts_.here.layout.node_of[peer]] = std::move(socket);
    }
  }

  Result<void> admit_expected() {
    std::optional<int> gone;  // its listener is closed; it may have connected before
    while (!expected_.empty()) {
      const TimePoint glance = BootClock::now() + (gone ? Duration::zero() : kGlanceAtOthers);
      Result<std::optional<PeerListener::AcceptedPeer>> caller = parts_.listener->admit(
          {ConnectionUse::kControl, ConnectionUse::kData}, std::min(deadline_.when(), glance));
      if (!caller) return caller.error();
      if (!*caller) {
        if (gone) return rank_is_gone(*gone, kConnecting);
        if (deadline_.passed()) {
          return timeout_error(kConnecting, name_ranks(absent()) + " did not call", deadline_);
        }
        if (std::optional<Error> lost = lost_member(options_)) {
          return std::move(*lost).within(kConnecting);
        }
        gone = find_gone();
        continue;
      }
      gone.reset();
      if (expected_.erase({(*caller)->rank, (*caller)->use}) == 0)
        continue;  // a second connection is dropped
      keep((*caller)->rank, (*caller)->use, std::move((*caller)->socket));
    }
    return {};
  }

  std::vector<int> absent() const {
    std::vector<int> ranks;
    for (const auto& [rank, use] : expected_) {
      if (ranks.empty() || ranks.back() != rank) ranks.push_back(rank);
    }
    return ranks;
  }

  // Returns a rank whose listener is closed: a rank that has published its info but does not
  // connect may have died since.
  std::optional<int> find_gone() const {
    for (const int rank : absent()) {
      if (is_closed(parts_.addresses[rank])) return rank;
    }
    return std::nullopt;
  }

  GroupParts& parts_;
  const Deadline& deadline_;
  const CpuGroupOptions& options_;
  std::set<std::pair<int, ConnectionUse>> expected_;
};

// --- forming ---

Result<std::unique_ptr<CpuGroup>> form_shared(Store& store, const CpuGroupOptions& options) {
  const Deadline deadline(options.timeout);
  const Result<NodeListener> node_listener = NodeListener::open();
  if (!node_listener) return node_listener.error();
  Result<PeerListener> peer_listener = PeerListener::open(options.address, options.ports);
  if (!peer_listener) return peer_listener.error();
  const Result<std::vector<PeerInfo>> peers = exchange_peer_info(
      store, options,
      {.listener = node_listener->name,
       .address = peer_listener->address(),
       .token = random_hex(16),
       .page_offset = options.page.file < 0 ? "" : std::to_string(options.page.offset),
       .machine = machine_id(),
       .cpus = cpus_text(usable_cpus()),
       .cache = std::to_string(std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 0L)),
       .node = options.node_id + "\n" + shm_domain()});
  if (!peers) return peers.error();

  GroupParts parts;
  parts.token = peers->front().token;
  std::vector<std::string> node_of_rank;
  for (const PeerInfo& info : *peers) {
    node_of_rank.push_back(info.node);
    parts.addresses.push_back(info.address);
  }
  GroupTopology& here = parts.here;
  here.layout = make_node_layout(node_of_rank);
  here.rank = options.rank.value;
  here.title = options.title;
  here.in_rank_order = options.deterministic_across_layouts;
  const std::set<std::string> crowded = crowded_machines(*peers);
  here.tuning =
      choose_tuning({.is_crowded = !crowded.empty(),
                     .nodes = here.layout.node_count(),
                     .cache_bytes = parse_number<std::size_t>(peers->front().cache).value_or(0)});
  if (options.tune) options.tune(here.tuning);
  here.node = here.layout.node_of[here.rank];
  here.local = here.layout.local_of[here.rank];

  const std::vector<int>& neighbours = here.layout.nodes[here.node];
  if (!crowded.contains(peers->at(here.rank).machine)) parts.spin = here.tuning.spin;
  parts.watch = {.rank = here.rank,
                 .world_size = options.world_size,
                 .node_ranks = neighbours,
                 .node_silence = options.node_silence};
  parts.explain_absence = options.explain_absence;
  here.segment =
      plan_segment(here.layout, here.node, choose_stage_bytes(here.layout, here.tuning.stage_bytes),
                   shared_segment_needs(static_cast<int>(neighbours.size()), options.world_size));

  std::vector<std::string> listeners;
  for (const int rank : neighbours) listeners.push_back(peers->at(rank).listener);
  Result<NodeMembers> members = bootstrap_node(*node_listener, listeners[0],
                                               {.ranks = neighbours,
                                                .listeners = listeners,
                                                .local = here.local,
                                                .token = parts.token,
                                                .page = options.page.file,
                                                .segment_bytes = here.segment.total,
                                                .deadline = deadline,
                                                .check_members = options.check_members});
  if (!members) return members.error();
  parts.segment = std::make_shared<const ShmSegment>(std::move(members->segment));
  parts.memory = PeerMemory(members->lives);
  parts.watch.lives = std::move(members->lives);
  for (std::size_t i = 0; i < neighbours.size(); ++i) {
    parts.watch.pages.push_back(page_of(peers->at(neighbours[i]), members->pages[i]));
  }
  parts.wakeups = std::make_unique<WakeupFds>(std::move(members->wakeups), here.local);

  if (!here.one_node()) {
    parts.listener = std::make_unique<PeerListener>(std::move(*peer_listener));
    if (const Result<void> connected = Connector(parts, deadline, options).connect(); !connected) {
      return connected.error();
    }
  }
  Result<std::unique_ptr<GroupCore>> core = GroupCore::create(std::move(parts));
  if (!core) return core.error();
  return make_shared_group(std::move(*core));
}

// --- messages ---

// data: a send only reads it.
MessageRequest request_of(const CpuGroup& group, bool is_send, const void* data, std::size_t bytes,
                          std::optional<Rank> partner, int tag, Duration timeout) {
  if (partner) require_partner(*partner, group.rank(), group.size());
  return {.is_send = is_send,
          .data = const_cast<char*>(static_cast<const char*>(data)),
          .bytes = bytes,
          .partner = partner ? partner->value : -1,
          .tag = tag,
          .deadline = Deadline(timeout)};
}

}  // namespace

Result<std::unique_ptr<CpuGroup>> CpuGroup::form(Store& store, const CpuGroupOptions& options) {
  const std::string doing = concat("connect to the other ranks", options.title, " as rank ",
                                   options.rank.value, " of ", options.world_size);
  if (options.world_size < 1 || options.rank.value < 0 ||
      options.rank.value >= options.world_size) {
    return invalid_argument("ranks go from 0 to the size of the world minus one").within(doing);
  }
  if (options.world_size == 1) return make_solo_group();
  Result<std::unique_ptr<CpuGroup>> group = form_shared(store, options);
  if (group) return group;
  // A peer that is gone may have given up because of a rank that is known to be dead. Report
  // that rank.
  std::optional<Error> lost = lost_member(options);
  return (lost ? std::move(*lost) : Error(group.error())).within(doing);
}

Result<void> CpuGroup::send(const void* data, std::size_t bytes, Rank destination, int tag,
                            Duration timeout) {
  const Result<Rank> sent =
      carry_out(request_of(*this, /*is_send=*/true, data, bytes, destination, tag, timeout));
  if (!sent) return sent.error();
  return {};
}

Result<Rank> CpuGroup::recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                            Duration timeout) {
  return carry_out(request_of(*this, /*is_send=*/false, data, bytes, source, tag, timeout));
}

void CpuGroup::start_send(const void* data, std::size_t bytes, Rank destination, int tag,
                          Duration timeout, TransferDone done) {
  start(request_of(*this, /*is_send=*/true, data, bytes, destination, tag, timeout),
        std::move(done));
}

void CpuGroup::start_recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                          Duration timeout, TransferDone done) {
  start(request_of(*this, /*is_send=*/false, data, bytes, source, tag, timeout), std::move(done));
}

}  // namespace ddprun
