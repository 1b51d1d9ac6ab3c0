#include "launcher/agent/rendezvous_handler.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "base/concat.h"
#include "base/random_id.h"
#include "base/version.h"
#include "base/worker_env.h"
#include "launcher/agent/agent.h"
#include "launcher/cluster/core/pod_names.h"
#include "launcher/plan/job_plan.h"
#include "rendezvous/auth/key_file.h"
#include "rendezvous/net/local_address.h"

namespace ddprun {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr Duration kResolveTimeout = std::chrono::seconds(20);
// Timeouts for a taken port of this host that refuses connections. A service there may be
// restarting, so the node listens itself only after kMayBeRestarted. A program that holds the
// port without listening may be about to end, so the node gives up only after kPortIsGivenBack.
constexpr Duration kMayBeRestarted = std::chrono::seconds(1);
constexpr Duration kPortIsGivenBack = std::chrono::seconds(3);
// The embedded service waits at most this long for the other agents to receive the verdict and
// leave. If this node leaves before the verdict, their workers may still be saving, and they have
// their grace on top of it.
constexpr Duration kDrainTimeout = std::chrono::seconds(10);
// With etcd, it then waits at most this long until etcd and the agents have its last messages.
constexpr Duration kResignTimeout = std::chrono::seconds(3);
// With etcd, the nodes with the first ranks stand for leader, and any node that finds no leader.
// Before it stands, it waits a random part of this time for each node that the job may have. An
// election takes a few ms, so few of a thousand nodes stand.
constexpr int kStanding = 3;
constexpr Duration kLookPause = std::chrono::milliseconds(2);
constexpr Duration kLongestLook = std::chrono::seconds(2);
// etcd removes what it has of a job when its nodes are gone for this time.
constexpr Duration kVerdictLives = std::chrono::hours(24);

// Returns the addresses from which workers of this node may connect to others, at most
// kMaxAddresses.
std::vector<std::string> addresses_of_this_node() {
  std::vector<std::string> found;
  for (const InterfaceAddress& one : interface_addresses()) {
    if (found.size() == kMaxAddresses) break;
    if (!is_loopback_address(one.address)) found.push_back(one.address.host());
  }
  return found;
}

// Looks up a name in a pod. Names of pods may still come, so the link asks again.
void resolve_in_pod(const HostPort& address, ResolveHandler then) {
  resolve_in_background(address,
                        [then = std::move(then)](Result<std::vector<SocketAddress>> found) {
                          then(found ? std::move(found) : within_pod(std::move(found).error()));
                        });
}

// Returns the address of this pod. Its own name is in /etc/hosts, without its subdomain.
std::optional<SocketAddress> address_of_pod() {
  const Result<std::vector<SocketAddress>> found = resolve({host_name(), 0}, kResolveTimeout);
  if (!found) return std::nullopt;
  for (const SocketAddress& one : *found) {
    if (is_local_address(one) && !is_loopback_address(one)) return one;
  }
  return std::nullopt;
}

// Returns the first address that is this host's.
const SocketAddress* find_local(const std::vector<SocketAddress>& addresses) {
  const auto found = std::find_if(addresses.begin(), addresses.end(), is_local_address);
  return found == addresses.end() ? nullptr : &*found;
}

// Returns the address of this host on the way to the first of these that has an address. A name of
// this host may mean loopback here only, so then it is the likeliest other one.
std::string address_towards(const std::vector<HostPort>& hosts) {
  for (const HostPort& host : hosts) {
    const Result<std::vector<SocketAddress>> found = resolve(host, kResolveTimeout);
    if (!found) continue;
    const std::string source = source_address_towards(found->front());
    const std::optional<SocketAddress> own = numeric_address({source, 0});
    if (own && (!is_loopback_address(*own) || is_loopback_host(host.host))) return source;
  }
  return likely_local_address(interface_addresses());
}

// Returns whether the names of this job may appear only later: a manifest started this process in
// a pod. For a command that a person typed, a wrong name is an error at once.
bool may_names_appear(const LaunchOptions& options) {
  if (!is_in_pod(environment_variable) || options.no_detect) return false;
  if (getpid() == 1) return true;
  if (isatty(STDIN_FILENO) == 1) return false;
  return options.cluster || environment_variable("PET_RDZV_ENDPOINT") ||
         environment_variable("PET_MASTER_ADDR");
}

}  // namespace

RendezvousHandler::RendezvousHandler(asio::io_context& io, Logger& log, const AgentConfig& config)
    : io_(io),
      log_(log),
      config_(config),
      agent_id_(random_hex(8)),
      drained_(io),
      names_may_appear_(may_names_appear(config.options)) {}

Result<void> RendezvousHandler::join(ServiceLinkEvents events) {
  events_ = std::move(events);
  if (const std::string& wanted = config_.options.local_addr; !wanted.empty()) {
    auto found = find_local_address(wanted, interface_addresses(), kResolveTimeout);
    if (!found) return std::move(found).error().within("--local-addr");
    local_addr_ = std::move(*found);
  }
  switch (config_.rendezvous.mode) {
    case Rendezvous::Mode::kLocal: return embed(std::nullopt, "127.0.0.1");
    case Rendezvous::Mode::kStatic: return join_static();
    case Rendezvous::Mode::kDynamic: return join_dynamic();
    case Rendezvous::Mode::kEtcd: return join_in_etcd();
  }
  return {};
}

// Stands for leader. Each agent has a service, and follows that of the agent that leads.
Result<void> RendezvousHandler::join_in_etcd() {
  if (local_addr_.empty()) local_addr_ = address_towards(config_.rendezvous.etcd.members);
  const std::optional<SocketAddress> own = numeric_address({local_addr_, 0});
  const bool is_loopback = own && is_loopback_address(*own);
  Result<Listener> listener = listen_tcp(is_loopback ? local_addr_ : "*", config_.options.ports);
  if (!listener) return std::move(listener).error().within("listen for the job's other nodes");
  own_port_ = listener->address.port;
  return embed(std::move(*listener), local_addr_);
}

// Keeps the service's state in etcd, and follows the service that leads: this one, or the one that
// it names.
void RendezvousHandler::follow_leader() {
  const EtcdPlace& place = config_.rendezvous.etcd;
  const HostPort own{own_address_, *own_port_};
  EtcdStateOptions etcd{.client = {.endpoints = place.members,
                                   .tls = config_.etcd_tls,
                                   .renew_tls =
                                       [place] {
                                         Result<TlsContextPtr> renewed = find_etcd_tls(place);
                                         return renewed ? std::move(*renewed) : nullptr;
                                       }},
                        .prefix = place.prefix,
                        .address = to_text(own),
                        .keys_live = kVerdictLives};
  server_->keep_in_etcd(std::move(etcd),
                        std::min(config_.options.nodes.max * kLookPause, kLongestLook));
  events_.directive = [this, then = std::move(events_.directive)](const Directive& directive) {
    const Assignment* const assignment = std::get_if<Assignment>(&directive);
    if (assignment && assignment->node_rank.value < kStanding && server_)
      server_->stand_for_leader();
    then(directive);
  };
  RemoteLinkOptions options = link_options();
  options.address = own;
  options.is_own = true;
  link_ = make_remote_link(io_, std::move(options), events_);
}

// Returns the addresses of the endpoint. A pod knows its own, also while the cluster's DNS does
// not.
Result<std::vector<SocketAddress>> RendezvousHandler::resolve_endpoint() const {
  const HostPort& endpoint = config_.rendezvous.endpoint;
  if (is_in_pod(environment_variable) && is_name_of(endpoint.host, host_name())) {
    if (const auto own = address_of_pod()) return std::vector{*own};
  }
  return resolve(endpoint, kResolveTimeout);
}

// With ports that were made from the scheduler's job, only its first node listens. Otherwise two
// nodes of one host could listen on two of them.
bool RendezvousHandler::may_listen_first() const {
  if (config_.rendezvous.next_ports.empty()) return true;
  return config_.options.cluster->node_rank.value_or(0) == 0;
}

// Returns the scheduler's job if its service may be at another port than the endpoint's. --rdzv-id
// does not tell that service from another's: two jobs may have the same.
std::string RendezvousHandler::cluster_job() const {
  return config_.rendezvous.next_ports.empty() ? "" : config_.options.cluster->job_id;
}

// Listens on the endpoint's port, or else on the first free one of the next ports.
Result<Listener> RendezvousHandler::listen_on(const std::string& host) {
  const Rendezvous& plan = config_.rendezvous;
  Result<Listener> listener = listen_tcp({host, plan.endpoint.port});
  for (const std::uint16_t next : plan.next_ports) {
    if (listener || listener.error().sys_errno != EADDRINUSE) break;
    listener = listen_tcp({host, next});
  }
  if (!listener) return listener;
  own_port_ = listener->address.port;
  if (own_port_ != plan.endpoint.port) {
    log_.info(concat("port ", plan.endpoint.port, " is taken; the rendezvous is at ", endpoint()));
  }
  return listener;
}

Result<void> RendezvousHandler::join_dynamic() {
  const Rendezvous& plan = config_.rendezvous;
  if (config_.service_socket) {
    return embed(Listener{std::move(*config_.service_socket), {"*", plan.endpoint.port}},
                 config_.service_address);
  }
  if (!plan.other_services.empty()) {
    connect(std::nullopt, "");
    return {};
  }
  Result<std::vector<SocketAddress>> addresses = resolve_endpoint();
  if (!addresses && !names_may_appear_) {
    return std::move(addresses).error().within("--rdzv-endpoint");
  }
  const SocketAddress* here = addresses ? find_local(*addresses) : nullptr;
  if (!here || !may_listen_first()) {
    connect(std::nullopt, "");
    return {};
  }
  const std::string host =
      listening_host({plan.endpoint.host, here->host()}, config_.options.nodes);
  const HostPort port{host, plan.endpoint.port};
  Result<Listener> listener = listen_on(host);
  if (listener) return embed(std::move(*listener), here->host());
  if (listener.error().sys_errno != EADDRINUSE) {
    return std::move(listener).error().within("--rdzv-endpoint");
  }
  if (!plan.next_ports.empty()) {
    return Error{.kind = ErrorKind::kConnection,
                 .doing = "--rdzv-endpoint",
                 .cause = concat(
                     "other programs have the ports ", plan.endpoint.port, " to ",
                     plan.next_ports.back(), " of ", plan.endpoint.host,
                     ": give an endpoint with a free port, and --nnodes=", config_.options.nodes)};
  }
  // The port is taken by a ddp-rendezvous, by another agent of this host, or by another program.
  connect(port, here->host());
  return {};
}

// Listens on the port if it is free now. Called when connections to it are refused.
void RendezvousHandler::listen_again(const HostPort& port, const std::string& address,
                                     Duration refused_for) {
  if (!may_listen_) return;
  const std::string again = concat(port, " refuses connections; trying again");
  if (refused_for < kMayBeRestarted) return log_.debug(again);
  Result<Listener> listener = listen_tcp(port);
  const bool is_taken = !listener && listener.error().sys_errno == EADDRINUSE;
  if (is_taken && refused_for < kPortIsGivenBack) return log_.debug(again);
  may_listen_ = false;
  Result<void> joined;
  if (listener) {
    joined = embed(std::move(*listener), address);
    if (joined) return start();
  } else if (is_taken) {
    joined = Error{
        .kind = ErrorKind::kConnection,
        .doing = "--rdzv-endpoint",
        .cause = concat(config_.rendezvous.endpoint,
                        " is taken by a program that is not a rendezvous service (it does not "
                        "accept connections here): choose another port")};
  } else {
    joined = std::move(listener).error().within("--rdzv-endpoint");
  }
  events_.lost({joined.error().message(), true, exit_code_});
}

// Listens if one of the addresses is this host's. Called when a look-up found the addresses and no
// service has answered. A pod in the network of its node does not know its name before.
void RendezvousHandler::listen_if_here(const std::vector<SocketAddress>& addresses) {
  const SocketAddress* here = find_local(addresses);
  if (!here || !may_listen_first()) return;
  const HostPort& endpoint = config_.rendezvous.endpoint;
  const std::string address = here->host();
  const std::string host = listening_host({endpoint.host, address}, config_.options.nodes);
  Result<Listener> listener = listen_on(host);
  // The port may be that of the service.
  if (!listener) return log_.debug(listener.error().message());
  Result<void> joined = embed(std::move(*listener), address);
  if (joined) return start();
  events_.lost({joined.error().message(), true, exit_code_});
}

Result<void> RendezvousHandler::join_static() {
  const Rendezvous& plan = config_.rendezvous;
  if (config_.options.node_rank.value_or(0) != 0) {
    connect(std::nullopt, "");
    return {};
  }
  Result<std::vector<SocketAddress>> addresses = resolve_endpoint();
  // A pod in the network of its node does not know its name before the cluster's DNS does. The
  // other nodes need the name before workers do.
  if (!addresses && !names_may_appear_) {
    return std::move(addresses).error().within("--master-addr");
  }
  const SocketAddress* address = addresses ? &addresses->front() : nullptr;
  if (address && !is_local_address(*address)) {
    return invalid_argument(plan.endpoint.host +
                            " is not an address of this host, but --node-rank 0 runs here")
        .within("--master-addr");
  }
  const std::string host =
      listening_host({plan.endpoint.host, address ? address->host() : ""}, config_.options.nodes);
  Result<Listener> listener = listen_tcp({host, plan.endpoint.port});
  if (!listener) return std::move(listener).error().within("--master-port");
  shared_port_ = listener->address.port;
  // Workers use the given name, as torchrun's workers do. But if the name resolves to loopback
  // on this host only, they would offer a loopback address to their peers. In that case they get
  // a numeric loopback address, and the service replaces it by the address that the other nodes
  // connected to.
  const bool misleads = host == "*" && address && is_loopback_address(*address);
  return embed(std::move(*listener), misleads ? address->host() : plan.endpoint.host);
}

// listener: where other nodes connect; nullopt for a job of this node alone.
Result<void> RendezvousHandler::embed(std::optional<Listener> listener, std::string address) {
  const bool has_etcd = config_.rendezvous.mode == Rendezvous::Mode::kEtcd;
  ServiceOptions options{
      .times = config_.options.times,
      .embedded = true,
      .host = host_name(),
      .only_job = has_etcd || !config_.rendezvous.next_ports.empty() ? config_.options.rdzv_id : "",
      .cluster_job = cluster_job(),
      .service_id = random_hex(8)};
  if (config_.munge.munge) options.owner = config_.munge.munge->user();
  UniqueFd socket;
  TlsContextPtr tls;
  if (listener) {
    if (config_.tls) {
      Result<FoundTls> found = TlsContext::for_service(config_.tls_files);
      if (!found) {
        exit_code_ = ExitCode::kUsage;
        return std::move(found).error().within("this host starts the service");
      }
      tls = std::move(found->context);
    }
    const bool is_closed = tls && tls->demands_certificates();
    const std::string exposure =
        is_closed ? "" : exposure_of(listener->address, config_.keys, config_.munge);
    if (!exposure.empty()) log_.warning(exposure);
    socket = std::move(listener->socket);
  }
  own_address_ = std::move(address);
  server_ = RendezvousServer::make(io_, log_, std::move(options), std::move(socket));
  server_->set_keys(config_.keys);
  if (config_.munge.munge) server_->set_munge(config_.munge.munge);
  server_->set_tls(std::move(tls));
  if (has_etcd) {
    follow_leader();
    return {};
  }
  link_ = make_local_link(*server_, events_);
  return {};
}

RemoteLinkOptions RendezvousHandler::link_options() const {
  const Rendezvous& plan = config_.rendezvous;
  return {.address = plan.endpoint,
          .others = plan.other_services,
          .next_ports = plan.next_ports,
          .link = {.service = services_text(plan), .join_timeout = plan.join_timeout},
          .key = config_.keys.key_of(config_.options.rdzv_id).value_or(Secret()),
          .munge = config_.munge.munge,
          .demands_proof = config_.options.require_auth,
          .tls = config_.tls,
          .tls_files = config_.tls_files};
}

// own_port: the port of this host that is taken. address: where other nodes reach this host.
void RendezvousHandler::connect(std::optional<HostPort> own_port, const std::string& address) {
  const Rendezvous& plan = config_.rendezvous;
  may_listen_ = own_port.has_value();
  RemoteLinkOptions options = link_options();
  options.link.must_answer = may_listen_;
  for (const std::uint16_t next : plan.next_ports)
    options.link.next_services.push_back(to_text(HostPort{plan.endpoint.host, next}));
  if (names_may_appear_) {
    options.look_up = resolve_in_pod;
    if (!own_port) options.found = [this](const auto& found) { listen_if_here(found); };
  }
  if (own_port) {
    options.port_refuses = [this, port = *own_port, address](Duration so_far) {
      listen_again(port, address, so_far);
    };
  }
  link_ = make_remote_link(io_, std::move(options), events_);
}

HostPort RendezvousHandler::endpoint() const {
  HostPort found = config_.rendezvous.endpoint;
  if (link_) found = link_->place().value_or(found);
  if (config_.rendezvous.mode == Rendezvous::Mode::kEtcd) return found;
  found.port = own_port_.value_or(found.port);
  return found;
}

bool RendezvousHandler::has_only_service() const {
  return server_ && config_.rendezvous.mode != Rendezvous::Mode::kEtcd;
}

void RendezvousHandler::start() {
  if (server_) server_->start();
  link_->start();
}

Hello RendezvousHandler::introduce(const std::string& local_address) const {
  const LaunchOptions& options = config_.options;
  const Rendezvous& plan = config_.rendezvous;
  Hello hello{.version = kVersion,
              .job = {.id = options.rdzv_id,
                      .nodes = options.nodes,
                      .max_restarts = options.max_restarts,
                      .restart_rules = options.restart_rules,
                      .join_timeout = plan.join_timeout,
                      .last_call = plan.last_call,
                      .on_join = options.on_join,
                      .node_failures = options.node_failures},
              .node = {.agent_id = agent_id_,
                       .host = host_name(),
                       .slots = config_.slots,
                       .node_rank = options.node_rank,
                       .address = !local_addr_.empty()    ? local_addr_
                                  : local_address.empty() ? own_address_
                                                          : local_address,
                       .supports_output = true,
                       .supports_flight = true,
                       .supports_stacks = true,
                       .supports_steps = true},
              .cluster_job = cluster_job()};
  if (plan.mode == Rendezvous::Mode::kStatic && !hello.node.node_rank) {
    hello.node.node_rank = 0;  // as in torchrun
  }
  if (!plan.is_local()) hello.node.other_addresses = addresses_of_this_node();
  return hello;
}

void RendezvousHandler::leave(std::optional<Leave> word, std::function<void()> then) {
  may_listen_ = false;
  asio::post(io_, [this, word = std::move(word), then = std::move(then)] {
    if (!link_) return;
    link_->leave(word, [this, word, then] {
      asio::post(io_, [this, word, then] { drain(word.has_value(), then); });
    });
  });
}

// Waits for the other agents: an embedded service stays until they have received the verdict. With
// etcd another node then takes the lead. It does so at once, if this node leaves before the end of
// an elastic job. A job of fixed size ends with this node.
void RendezvousHandler::drain(bool is_before_end, const std::function<void()>& then) {
  if (!link_) return;
  if (!server_) return then();
  const bool has_etcd = config_.rendezvous.mode == Rendezvous::Mode::kEtcd;
  const auto end = [this, has_etcd, then] {
    if (std::exchange(is_draining_, true)) return;
    end_wait_ = nullptr;
    if (!has_etcd || !server_) return then();
    const auto once = [this, then, is_over = std::make_shared<bool>(false)] {
      if (std::exchange(*is_over, true)) return;
      drained_.cancel();
      then();
    };
    server_->drain(once);
    drained_.expires_after(kResignTimeout);
    drained_.async_wait([once](error_code error) {
      if (!error) once();
    });
  };
  const NodeRange& nodes = config_.options.nodes;
  if (has_etcd && is_before_end && nodes.min < nodes.max) return end();
  end_wait_ = end;
  server_->when_idle(end);
  const Duration grace = config_.options.grace.value_or(config_.default_grace);
  drained_.expires_after(kDrainTimeout + (is_before_end ? grace : Duration::zero()));
  drained_.async_wait([end](error_code error) {
    if (!error) end();
  });
}

void RendezvousHandler::hurry() {
  const std::function<void()> end = end_wait_;
  if (!end) return;
  log_.warning("second SIGINT: not waiting for the other nodes");
  drained_.cancel();
  end();
}

void RendezvousHandler::close() {
  end_wait_ = nullptr;
  link_.reset();
  server_.reset();
  drained_.cancel();
}

}  // namespace ddprun
