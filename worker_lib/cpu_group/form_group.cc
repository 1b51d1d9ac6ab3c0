#include "worker_lib/cpu_group/form_group.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/parse_number.h"
#include "base/random_id.h"
#include "base/usable_cpus.h"
#include "base/worker_page_file.h"
#include "rendezvous/net/blocking_socket.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/cpu_group/group_core.h"
#include "worker_lib/cpu_group/shared_group.h"
#include "worker_lib/cpu_group/solo_group.h"
#include "worker_lib/cpu_peers/node_bootstrap.h"
#include "worker_lib/cpu_shm/core/node_layout.h"

namespace ddprun {
namespace {

constexpr const char* kPeerInfoVersion = "ddprun-cpu-5";
constexpr const char* kRankOrder = "rank order";
constexpr const char* kAnyOrder = "any order";
constexpr std::string_view kAbsent = "ddprun-absent\n";  // begins an absent_peer_info()
constexpr const char* kConnecting = "connect to the other nodes";
constexpr Duration kConnectTimeout = std::chrono::milliseconds(50);

// --- peers ---

struct PeerInfo {
  std::string listener;  // name of the listener for its node
  HostPort address;
  std::string token;           // rank 0's becomes the group's
  bool in_rank_order = false;  // deterministic_across_layouts
  std::string checks;          // CpuGroupOptions
  // Of its worker page, in the file that it shows to its node; empty: none.
  std::string page_offset;
  std::string machine;  // the machine on which it runs
  std::string cpus;     // '1' for each processor that the rank may use
  std::string cache;    // bytes of a core's second-level cache; "0": unknown
  // Ranks with equal text share memory. It may hold line ends, hence the last field.
  std::string node;
};

std::string cpus_text(const std::vector<int>& cpus) {
  std::string text(cpus.back() + 1, '0');
  for (const int cpu : cpus) text[cpu] = '1';
  return text;
}

std::string write_peer_info(const PeerInfo& info) {
  std::string text = kPeerInfoVersion;
  for (const std::string& field : std::initializer_list<std::string>{
           info.listener, info.address.host, std::to_string(info.address.port), info.token,
           info.in_rank_order ? kRankOrder : kAnyOrder, info.checks, info.page_offset, info.machine,
           info.cpus, info.cache, info.node}) {
    text += "\n" + field;
  }
  return text;
}

Result<PeerInfo> read_peer_info(const std::string& text, int rank) {
  if (text.starts_with(kAbsent)) {
    return Error{.kind = ErrorKind::kTimeout, .cause = text.substr(kAbsent.size())};
  }
  std::istringstream lines(text);
  std::string version;
  std::string port;
  std::string order;
  PeerInfo info;
  for (std::string* const field :
       {&version, &info.listener, &info.address.host, &port, &info.token, &order, &info.checks,
        &info.page_offset, &info.machine, &info.cpus, &info.cache}) {
    std::getline(lines, *field);
  }
  std::getline(lines, info.node, '\0');
  const std::optional<std::uint16_t> number = parse_number<std::uint16_t>(port);
  if (version != kPeerInfoVersion || !lines || !number) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "read the address of " + name_rank(rank),
                 .cause = "it was not written by this version of ddprun"};
  }
  info.address.port = *number;
  info.in_rank_order = order == kRankOrder;
  return info;
}

Result<std::vector<PeerInfo>> exchange_peer_info(const ExchangePeerInfo& exchange,
                                                 const PeerInfo& own, int world_size) {
  const Result<std::vector<std::string>> texts = exchange(write_peer_info(own));
  if (!texts) return texts.error();
  std::vector<PeerInfo> peers;
  for (int rank = 0; rank < world_size; ++rank) {
    Result<PeerInfo> info = read_peer_info(texts->at(rank), rank);
    if (!info) return info.error();
    if (info->in_rank_order != own.in_rank_order) {
      return invalid_argument(name_rank(rank) + " wants " + (own.in_rank_order ? "no" : "the") +
                              " same bits for every layout, unlike this rank");
    }
    if (info->checks != own.checks) {
      const auto in_words = [](const std::string& checks) {
        return checks.empty() ? "nothing" : checks;
      };
      return invalid_argument(name_rank(rank) + " looks for " + in_words(info->checks) +
                              ", this rank for " + in_words(own.checks) +
                              ": DDPRUN_VERIFY must say the same to all ranks");
    }
    peers.push_back(std::move(*info));
  }
  return peers;
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
  // check_members: see CpuGroupOptions.
  Connector(GroupParts& parts, const Deadline& deadline,
            const std::function<std::optional<Error>()>& check_members)
      : parts_(parts), deadline_(deadline), check_members_(check_members) {}

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
      parts_.links.push_back({peer, std::move(socket)});
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
        if (deadline_.passed()) return nobody_called();
        std::optional<Error> lost = check_members_ ? check_members_() : std::nullopt;
        if (lost) return std::move(*lost).within(kConnecting);
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

  std::set<int> absent() const {
    std::set<int> ranks;
    for (const auto& [rank, use] : expected_) ranks.insert(rank);
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

  Error nobody_called() const {
    const std::set<int> ranks = absent();
    return timeout_error(kConnecting,
                         name_ranks(std::vector<int>(ranks.begin(), ranks.end())) + " did not call",
                         deadline_);
  }

  GroupParts& parts_;
  const Deadline& deadline_;
  const std::function<std::optional<Error>()>& check_members_;
  std::set<std::pair<int, ConnectionUse>> expected_;
};

// --- everything ---

Result<std::unique_ptr<CpuGroup>> form_shared(const ExchangePeerInfo& exchange,
                                              const CpuGroupOptions& options) {
  const Deadline deadline(options.timeout);
  const Result<NodeListener> node_listener = NodeListener::open();
  if (!node_listener) return node_listener.error();
  Result<PeerListener> peer_listener = PeerListener::open(options.address, options.ports);
  if (!peer_listener) return peer_listener.error();
  const Result<std::vector<PeerInfo>> peers = exchange_peer_info(
      exchange,
      {.listener = node_listener->name,
       .address = peer_listener->address(),
       .token = random_hex(16),
       .in_rank_order = options.deterministic_across_layouts,
       .checks = options.checks,
       .page_offset = options.page.file < 0 ? "" : std::to_string(options.page.offset),
       .machine = machine_id(),
       .cpus = cpus_text(usable_cpus()),
       .cache = std::to_string(std::max(sysconf(_SC_LEVEL2_CACHE_SIZE), 0L)),
       .node = options.node_id + "\n" + shm_domain()},
      options.world_size);
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
                     .cache_bytes = parse_number<std::size_t>(peers->front().cache).value_or(0)},
                    options.tuning);
  here.node = here.layout.node_of[here.rank];
  here.local = here.layout.local_of[here.rank];

  const std::vector<int>& neighbours = here.layout.nodes[here.node];
  if (!crowded.contains(peers->at(here.rank).machine)) parts.spin = here.tuning.spin;
  parts.node_silence = options.node_silence;
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
  parts.lives = std::move(members->lives);
  parts.memory = PeerMemory(parts.lives);
  for (std::size_t i = 0; i < neighbours.size(); ++i) {
    parts.pages.push_back(page_of(peers->at(neighbours[i]), members->pages[i]));
  }
  parts.wakeups = std::make_unique<WakeupFds>(std::move(members->wakeups), here.local);

  if (!here.one_node()) {
    parts.listener = std::make_unique<PeerListener>(std::move(*peer_listener));
    if (const Result<void> connected = Connector(parts, deadline, options.check_members).connect();
        !connected) {
      return connected.error();
    }
  }
  Result<std::unique_ptr<GroupCore>> core = GroupCore::create(std::move(parts));
  if (!core) return core.error();
  return make_shared_group(std::move(*core));
}

}  // namespace

std::string absent_peer_info(const std::string& reason) { return std::string(kAbsent) + reason; }

Result<std::unique_ptr<CpuGroup>> form_group(const ExchangePeerInfo& exchange,
                                             const CpuGroupOptions& options) {
  const std::string doing = "connect to the other ranks" + options.title + " as rank " +
                            to_text(options.rank) + " of " + std::to_string(options.world_size);
  if (options.world_size < 1 || options.rank.value < 0 ||
      options.rank.value >= options.world_size) {
    return invalid_argument("ranks go from 0 to the size of the world minus one").within(doing);
  }
  if (options.world_size == 1) return make_solo_group();
  Result<std::unique_ptr<CpuGroup>> group = form_shared(exchange, options);
  if (group) return group;
  // A peer that is gone may have given up because of a rank that is known to be dead. Report
  // that rank.
  std::optional<Error> lost = options.check_members ? options.check_members() : std::nullopt;
  return (lost ? std::move(*lost) : Error(group.error())).within(doing);
}

}  // namespace ddprun
