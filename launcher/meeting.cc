#include "launcher/meeting.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/random_id.h"
#include "base/version.h"
#include "launcher/agent.h"
#include "rendezvous/blocking_socket.h"
#include "rendezvous/key_file.h"
#include "rendezvous/local_address.h"
#include "rendezvous/tcp_address.h"

namespace ddprun {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr Duration kResolveTimeout = std::chrono::seconds(20);
// A port of this host that is taken, and where connections are refused, is asked for again.
constexpr Duration kPortIsGivenBack = std::chrono::seconds(1);
constexpr Duration kLookAgain = std::chrono::milliseconds(50);
constexpr Duration kAcceptTimeout = std::chrono::seconds(1);
// Other agents hear the verdict and go; the embedded service does not wait longer for them.
constexpr Duration kDrainTimeout = std::chrono::seconds(10);

// From where workers of this node may call others.
std::vector<std::string> addresses_of_this_node() {
  std::vector<std::string> found;
  for (const InterfaceAddress& one : interface_addresses()) {
    if (found.size() == kMaxAddresses) break;
    if (!is_loopback_address(one.address)) found.push_back(one.address.host());
  }
  return found;
}

// All that are of this host.
bool refuse_connections(const std::vector<SocketAddress>& addresses) {
  return std::none_of(addresses.begin(), addresses.end(), [](const SocketAddress& address) {
    if (!is_local_address(address)) return false;
    const auto tried = BlockingSocket::connect(address, Deadline(kAcceptTimeout));
    return tried || tried.error().sys_errno != ECONNREFUSED;
  });
}

}  // namespace

Meeting::Meeting(asio::io_context& io, Logger& log, const AgentConfig& config)
    : io_(io), log_(log), config_(config), agent_id_(random_hex(8)), drained_(io) {}

Result<void> Meeting::meet(ServiceLinkEvents events) {
  events_ = std::move(events);
  if (const std::string& wanted = config_.options.local_addr; !wanted.empty()) {
    auto found = find_local_address(wanted, interface_addresses(), kResolveTimeout);
    if (!found) return std::move(found).error().within("--local-addr");
    local_addr_ = std::move(*found);
  }
  switch (config_.rendezvous.mode) {
    case Rendezvous::Mode::kLocal: return embed(std::nullopt, "127.0.0.1");
    case Rendezvous::Mode::kStatic: return meet_static();
    case Rendezvous::Mode::kDynamic: return meet_dynamic();
  }
  return {};
}

Result<void> Meeting::meet_dynamic() {
  const Rendezvous& plan = config_.rendezvous;
  Result<std::vector<SocketAddress>> addresses = resolve(plan.meeting_point, kResolveTimeout);
  if (!addresses) return std::move(addresses).error().within("--rdzv-endpoint");
  std::optional<SocketAddress> here;
  for (const SocketAddress& address : *addresses) {
    if (!here && is_local_address(address)) here = address;
  }
  if (!here) {
    connect(false);
    return {};
  }
  const std::string host =
      listening_host({plan.meeting_point.host, here->host()}, config_.options.nodes);
  // A program that has the port and refuses connections may be about to end.
  for (const Deadline deadline(kPortIsGivenBack);; std::this_thread::sleep_for(kLookAgain)) {
    Result<Listener> listener = listen_tcp({host, plan.meeting_point.port});
    if (listener) return embed(std::move(*listener), here->host());
    if (listener.error().sys_errno != EADDRINUSE) {
      return std::move(listener).error().within("--rdzv-endpoint");
    }
    // Taken: by a ddp-rendezvous, or by another agent of this host. Else it will not say welcome.
    if (!refuse_connections(*addresses)) break;
    if (deadline.passed()) {
      return Error{.kind = ErrorKind::kConnection,
                   .doing = "--rdzv-endpoint",
                   .cause = to_text(plan.meeting_point) +
                            " is taken by something that is no rendezvous service (it does not "
                            "accept connections here): choose another port"};
    }
  }
  connect(true);
  return {};
}

Result<void> Meeting::meet_static() {
  const Rendezvous& plan = config_.rendezvous;
  if (config_.options.node_rank.value_or(0) != 0) {
    connect(false);
    return {};
  }
  Result<std::vector<SocketAddress>> addresses = resolve(plan.meeting_point, kResolveTimeout);
  if (!addresses) return std::move(addresses).error().within("--master-addr");
  const SocketAddress& address = addresses->front();
  if (!is_local_address(address)) {
    return invalid_argument(plan.meeting_point.host +
                            " is no address of this host, but --node-rank 0 runs here")
        .within("--master-addr");
  }
  const std::string host =
      listening_host({plan.meeting_point.host, address.host()}, config_.options.nodes);
  Result<Listener> listener = listen_tcp({host, plan.meeting_point.port});
  if (!listener) return std::move(listener).error().within("--master-port");
  shared_port_ = listener->address.port;
  // Workers use the name that was given, as torchrun's do. But where it leads to loopback on this
  // host alone, they would offer their peers a loopback address: then they get what the other
  // nodes have reached, which the service puts in the place of a numeric loopback address.
  const bool misleads = host == "*" && is_loopback_address(address);
  return embed(std::move(*listener), misleads ? address.host() : plan.meeting_point.host);
}

// listener: where other nodes come; nullopt for a job of this node alone.
Result<void> Meeting::embed(std::optional<Listener> listener, std::string address) {
  ServiceOptions options;
  options.times = config_.options.times;
  options.embedded = true;
  options.host = host_name();
  options.service_id = random_hex(8);
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
  server_ = std::make_unique<RendezvousServer>(io_, log_, std::move(options), std::move(socket));
  server_->set_keys(config_.keys);
  if (config_.munge.munge) server_->set_munge(config_.munge.munge);
  server_->set_tls(std::move(tls));
  link_ = make_local_link(*server_, std::move(events_));
  return {};
}

void Meeting::connect(bool must_answer) {
  const Rendezvous& plan = config_.rendezvous;
  RemoteLinkOptions options;
  options.address = plan.meeting_point;
  options.link.service = to_text(plan.meeting_point);
  options.link.join_timeout = plan.join_timeout;
  options.link.must_answer = must_answer;
  options.key = config_.keys.key_of(config_.options.rdzv_id).value_or(Secret());
  options.munge = config_.munge.munge;
  options.demands_proof = config_.options.require_auth;
  options.tls = config_.tls;
  options.tls_files = config_.tls_files;
  link_ = make_remote_link(io_, std::move(options), std::move(events_));
}

void Meeting::start() {
  if (server_) server_->start();
  link_->start();
}

Hello Meeting::introduce(const std::string& local_address) const {
  const LaunchOptions& options = config_.options;
  Hello hello;
  hello.version = kVersion;
  hello.job.id = options.rdzv_id;
  hello.job.nodes = options.nodes;
  hello.job.max_restarts = options.max_restarts;
  hello.job.restart_rules = options.restart_rules;
  hello.job.join_timeout = config_.rendezvous.join_timeout;
  hello.job.last_call = config_.rendezvous.last_call;
  hello.job.on_join = options.on_join;
  hello.job.node_failures = options.node_failures;
  hello.node.agent_id = agent_id_;
  hello.node.host = host_name();
  hello.node.slots = config_.slots;
  hello.node.node_rank = options.node_rank;
  hello.node.tells_output = true;
  hello.node.tells_flight = true;
  if (config_.rendezvous.mode == Rendezvous::Mode::kStatic && !hello.node.node_rank) {
    hello.node.node_rank = 0;  // as torchrun's
  }
  hello.node.address = !local_addr_.empty()    ? local_addr_
                       : local_address.empty() ? own_address_
                                               : local_address;
  if (config_.rendezvous.mode != Rendezvous::Mode::kLocal) {
    hello.node.other_addresses = addresses_of_this_node();
  }
  return hello;
}

void Meeting::leave(std::optional<Leave> word, std::function<void()> then) {
  asio::post(io_, [this, word = std::move(word), then = std::move(then)] {
    if (!link_) return;
    link_->leave(word, [this, then] { asio::post(io_, [this, then] { drain(then); }); });
  });
}

// The last one out: an embedded service stays until the others have heard the verdict.
void Meeting::drain(const std::function<void()>& then) {
  if (!link_) return;
  if (!server_) return then();
  server_->when_idle(then);
  drained_.expires_after(kDrainTimeout);
  drained_.async_wait([then](error_code error) {
    if (!error) then();
  });
}

void Meeting::close() {
  link_.reset();
  server_.reset();
  drained_.cancel();
}

}  // namespace ddprun
