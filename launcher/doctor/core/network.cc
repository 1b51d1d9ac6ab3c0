// Checks of names, the endpoint and ports. See launcher/doctor/core/doctor.h.
#include <algorithm>

#include "base/concat.h"
#include "base/joined.h"
#include "base/split.h"
#include "launcher/doctor/core/doctor.h"

namespace ddprun {
namespace {

using enum Level;

// A healthy name service answers within milliseconds. One lost answer costs five seconds.
constexpr Duration kSlowLookUp = std::chrono::milliseconds(500);
constexpr Duration kVerySlowLookUp = std::chrono::seconds(1);

Level level_of_look_up(Duration took) {
  return took >= kVerySlowLookUp ? kProblem : took >= kSlowLookUp ? kWarning : kOk;
}

using Details = std::vector<std::pair<std::string, DetailValue>>;

double seconds_of(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// --- names ---------------------------------------------------------------------------------------

std::string answer_text(const LookUp& look_up) {
  switch (look_up.outcome) {
    case LookUp::Outcome::kSilent:
      return look_up.asked + ": the name service did not answer within " + to_text(look_up.took);
    case LookUp::Outcome::kNotFound:
      return look_up.asked + " does not resolve: " + look_up.why + " (" + to_text(look_up.took) +
             ")";
    case LookUp::Outcome::kFound: break;
  }
  return look_up.asked + " resolves to " + joined(look_up.found) + " (" + to_text(look_up.took) +
         ")";
}

Details look_up_details(const LookUp& look_up) {
  return {{"asked", look_up.asked},
          {"took_s", seconds_of(look_up.took)},
          {"found", joined(look_up.found)}};
}

bool is_slow(const LookUp& look_up) {
  return look_up.outcome == LookUp::Outcome::kSilent || look_up.took >= kSlowLookUp;
}

std::optional<Finding> judge_host_name(const DoctorFacts& facts) {
  const LookUp& own = facts.names.own;
  Finding finding{.seen = "this host's name " + answer_text(own), .details = look_up_details(own)};
  const std::string hosts_line =
      "add a line 'ADDRESS " + own.asked +
      "' to /etc/hosts, with the address at which other nodes reach this host";
  if (own.outcome == LookUp::Outcome::kSilent) {
    finding.rate(
        kProblem,
        "PyTorch's gloo, torchrun and MPI look it up in every process, and each waits for the "
        "answer",
        hosts_line + ", or repair the name service");
  } else if (own.outcome == LookUp::Outcome::kNotFound) {
    finding.rate(
        kProblem,
        "PyTorch's gloo then listens on loopback, where no other node reaches it; MPI and other "
        "programs that look it up fail",
        hosts_line);
  } else if (is_slow(own)) {
    finding.rate(level_of_look_up(own.took),
                 "every process that looks it up at its start waits as long",
                 hosts_line + ", or repair the name service");
  } else if (!facts.names.own_is_here) {
    finding.rate(kWarning,
                 "that is not an address of this host: PyTorch's gloo cannot listen there",
                 "correct /etc/hosts or DNS, or give workers GLOO_SOCKET_IFNAME=INTERFACE");
  } else if (facts.names.own_is_loopback && facts.job.several_nodes) {
    finding.rate(
        kWarning,
        "PyTorch's gloo listens there, where no other node reaches it (ddprun and its library do "
        "not look this name up)",
        "give workers GLOO_SOCKET_IFNAME=INTERFACE, or let the name resolve to the address at "
        "which other nodes reach this host");
  }
  return finding;
}

std::string server_text(const NameServer& server) {
  switch (server.outcome) {
    case NameServer::Outcome::kSilent:
      return server.address + " did not answer within " + to_text(server.took);
    case NameServer::Outcome::kFailed: return server.address + " cannot be queried: " + server.why;
    case NameServer::Outcome::kAnswered: break;
  }
  return server.address + " answers in " + to_text(server.took);
}

std::optional<Finding> judge_name_service(const DoctorFacts& facts) {
  const std::vector<NameServer>& servers = facts.names.servers;
  if (servers.empty()) {
    return Finding{.seen = "/etc/resolv.conf names no server: names come from /etc/hosts"};
  }
  std::vector<std::string> texts;
  int answering = 0;
  Duration slowest{};
  for (const NameServer& server : servers) {
    texts.push_back(server_text(server));
    if (server.outcome != NameServer::Outcome::kAnswered) continue;
    ++answering;
    slowest = std::max(slowest, server.took);
  }
  Finding finding{.seen = "name server " + joined(texts)};
  for (const NameServer& server : servers) {
    finding.details.emplace_back(server.address, seconds_of(server.took));
  }
  const bool first_is_silent = servers.front().outcome == NameServer::Outcome::kSilent;
  if (answering == 0) {
    finding.rate(
        kProblem,
        "only names in /etc/hosts resolve; if a server is silent, every look-up waits 5 s for it, "
        "twice, and PyTorch's store client makes a look-up in every process",
        "correct /etc/resolv.conf or the network path to the server (UDP port 53); until then put "
        "the nodes into /etc/hosts, and RES_OPTIONS='timeout:1 attempts:1' into the workers' "
        "environment");
  } else if (first_is_silent) {
    finding.rate(kProblem,
                 "every look-up asks this server first, and waits 5 s before it asks the next one",
                 "remove it from /etc/resolv.conf, or put it last");
  } else if (answering < static_cast<int>(servers.size())) {
    finding.rate(kWarning, "when an earlier server loses an answer, look-ups wait 5 s for this one",
                 "remove servers that do not answer from /etc/resolv.conf");
  } else if (slowest >= kSlowLookUp) {
    finding.rate(level_of_look_up(slowest),
                 "every look-up of a name that is not in /etc/hosts takes as long",
                 "put the nodes into /etc/hosts, or a nearer server into /etc/resolv.conf");
  }
  return finding;
}

std::optional<Finding> judge_address_names(const DoctorFacts& facts) {
  const std::vector<LookUp>& all = facts.names.of_addresses;
  if (all.empty()) return std::nullopt;
  const LookUp& slowest = *std::ranges::max_element(
      all, [](const auto& a, const auto& b) { return seconds_of(a.took) < seconds_of(b.took); });
  std::vector<std::string> addresses;
  std::vector<std::string> slow;
  Finding finding;
  for (const LookUp& one : all) {
    addresses.push_back(one.asked);
    if (is_slow(one)) slow.push_back(one.asked);
    finding.details.emplace_back(one.asked, seconds_of(one.took));
  }
  if (slow.empty()) {
    finding.seen = "asked for the names of " + joined(addresses) + ": answered within " +
                   to_text(slowest.took);
    return finding;
  }
  const bool silent = slowest.outcome == LookUp::Outcome::kSilent;
  finding.seen = (silent ? "no server answered within " : "it took up to ") +
                 to_text(slowest.took) +
                 (silent ? " for the name of " : " to look up the name of ") + joined(slow);
  finding.rate(
      silent ? kProblem : level_of_look_up(slowest.took),
      "PyTorch's store client asks for the name of MASTER_ADDR before it connects, even if that is "
      "numeric: every Python worker waits for it, 10 s if no server answers",
      "a line '" + slow.back() +
          " NAME' in /etc/hosts, exactly like this, for each; or RES_OPTIONS='timeout:1 "
          "attempts:1' in "
          "the workers' environment");
  return finding;
}

// --- the endpoint --------------------------------------------------------------------------------

std::optional<Finding> judge_endpoint(const DoctorFacts& facts) {
  if (!facts.network.endpoint) return std::nullopt;
  const EndpointFacts& endpoint = *facts.network.endpoint;
  const LookUp& look_up = endpoint.look_up;
  const bool is_numeric = look_up.found.size() == 1 && look_up.found.front() == look_up.asked;
  Finding finding{.seen = endpoint.option + ": " +
                          (is_numeric ? look_up.asked + " is numeric" : answer_text(look_up)) +
                          (endpoint.is_here ? "; that is this host" : ""),
                  .details = look_up_details(look_up)};
  finding.details.emplace_back("is_this_host", endpoint.is_here);
  if (look_up.outcome == LookUp::Outcome::kSilent) {
    finding.rate(
        kProblem, "this node does not find the others: it waits, then ends with exit code 69",
        "give a numeric address, put the name into /etc/hosts, or repair the name service");
  } else if (look_up.outcome == LookUp::Outcome::kNotFound) {
    finding.rate(
        kProblem, "this node does not find the others: it ends with exit code 69",
        "check the spelling; else put the name into /etc/hosts of every node, or give a numeric "
        "address");
  } else if (facts.job.several_nodes && is_loopback_host(endpoint.address.host)) {
    finding.rate(kProblem,
                 "on every node it means that node itself: the nodes do not find each other",
                 "give a name or an address of the first node that works on all nodes");
  } else if (is_slow(look_up)) {
    finding.rate(level_of_look_up(look_up.took),
                 "every node waits as long before it joins, and again when it reconnects",
                 "put the name into /etc/hosts, or give a numeric address");
  }
  return finding;
}

std::string try_text(const ConnectTry& one, std::uint16_t port) {
  using enum ConnectTry::Outcome;
  const std::string where = to_text(HostPort{one.address, port});
  switch (one.outcome) {
    case kConnected: return where + " answers in " + to_text(one.took);
    case kRefused:
      return where + ": connection refused, no program listens (" + to_text(one.took) + ")";
    case kSilent: return where + ": no answer within " + to_text(one.took);
    case kFailed: break;
  }
  return where + ": " + one.why;
}

bool has_try(const EndpointFacts& endpoint, ConnectTry::Outcome outcome) {
  return std::ranges::count(endpoint.tries, outcome, &ConnectTry::outcome) > 0;
}

std::optional<Finding> judge_endpoint_reach(const DoctorFacts& facts) {
  using enum ConnectTry::Outcome;
  if (!facts.network.endpoint || facts.network.endpoint->tries.empty()) return std::nullopt;
  const EndpointFacts& endpoint = *facts.network.endpoint;
  std::vector<std::string> texts;
  Finding finding;
  for (const ConnectTry& one : endpoint.tries) {
    texts.push_back(try_text(one, endpoint.address.port));
    finding.details.emplace_back(one.address, seconds_of(one.took));
  }
  finding.seen = joined(texts);
  const ConnectTry& first = endpoint.tries.front();
  if (has_try(endpoint, kConnected)) {
    if (first.outcome == kConnected) return finding;
    finding.rate(kWarning, "the addresses are tried in this order: the earlier ones cost time",
                 "give the address that works instead of the name");
    return finding;
  }
  if (has_try(endpoint, kRefused)) {
    if (endpoint.is_here) {
      finding.seen += "; ddprun would start the service here";
      return finding;
    }
    finding.rate(
        kWarning, "the host is reachable, but no service runs there yet: nodes wait for it",
        "start ddprun or ddp-rendezvous on that host; if one runs there, compare its port");
    return finding;
  }
  finding.rate(kProblem, "this node does not reach the others: it waits for them, then gives up",
               has_try(endpoint, kSilent)
                   ? "a firewall drops the packets, the host is down, or the address is wrong: "
                     "open the port in both hosts' firewalls; `ip route get " +
                         first.address + "` shows the route"
                   : "`ip route get " + first.address + "` shows the kernel's route");
  return finding;
}

std::optional<Finding> judge_service(const DoctorFacts& facts) {
  if (!facts.network.endpoint || !facts.network.endpoint->service) return std::nullopt;
  const ServiceAnswer& answer = *facts.network.endpoint->service;
  const std::string where = to_text(facts.network.endpoint->address);
  Finding finding{.details = {{"took_s", seconds_of(answer.took)}}};
  const auto says = [&](std::string seen, std::string effect, std::string advice) {
    finding.seen = std::move(seen);
    finding.rate(kProblem, std::move(effect), std::move(advice));
    return finding;
  };
  constexpr auto kRefuses = "this node is not admitted";
  using enum ServiceAnswer::Outcome;
  switch (answer.outcome) {
    case kService: break;
    case kWantsTls:
      return says("the service at " + where + " requires TLS, and no --rdzv-tls-ca was given",
                  kRefuses, "give --rdzv-tls-ca, as on the other nodes (docs/how-to/security.md)");
    case kTlsFailed:
      return says("TLS with " + where + " fails: " + answer.why, kRefuses,
                  "compare --rdzv-tls-ca, -cert and -key with the service's "
                  "(docs/how-to/security.md)");
    case kWantsKey:
      return says("the service at " + where + " requires a key, and none was given", kRefuses,
                  "give --rdzv-key-file or DDPRUN_RDZV_KEY, as on the other nodes");
    case kRefusesKey:
      return says(
          "the service at " + where + " and this node do not have the same key: " + answer.why,
          kRefuses, "compare --rdzv-key-file, DDPRUN_RDZV_KEY and --rdzv-id with the service's");
    case kNoLeader:
      return says("the service at " + where + " stands by, and no service leads",
                  "nodes wait for one that leads, then give up",
                  "`/readyz` of each service says what it waits for; look at etcd, too");
    case kOther:
      return says("the program that listens at " + where +
                      " is not a rendezvous service of ddprun: " + answer.why,
                  "nodes cannot join there",
                  "another program uses the port (torchrun, a store of PyTorch, ...): end it, or "
                  "choose another port");
    case kSilent:
      return says(where + " accepts connections and sends nothing within " + to_text(answer.took),
                  "nodes wait for it, then give up",
                  "check on that host whether the service is stopped, or whether another program "
                  "uses the port");
  }
  finding.seen = "a rendezvous service answers at " + where + " in " + to_text(answer.took);
  if (!answer.version.empty()) finding.seen += ": ddprun " + answer.version + " on " + answer.host;
  if (answer.has_proved) finding.seen += "; it has the same key";
  if (!answer.why.empty()) finding.seen += "; " + answer.why;
  finding.details.emplace_back("version", answer.version);
  finding.details.emplace_back("host", answer.host);
  if (!answer.version.empty() && answer.version != facts.version) {
    finding.rate(kWarning,
                 "this host has ddprun " + facts.version +
                     ": a service of another protocol refuses "
                     "this node",
                 "install the same version everywhere");
  }
  return finding;
}

// Returns why a service cannot be used; empty: it can.
std::string trouble_of(const EndpointFacts& service) {
  if (service.service) {
    using enum ServiceAnswer::Outcome;
    const ServiceAnswer& answer = *service.service;
    if (answer.outcome == kService) return "";
    if (answer.outcome == kSilent) return "it sends nothing";
    if (answer.outcome == kWantsTls) return "it requires TLS";
    return answer.why.empty() ? "it requires a key" : answer.why;
  }
  if (service.tries.empty()) return answer_text(service.look_up);
  return try_text(service.tries.front(), service.address.port);
}

std::optional<Finding> judge_services(const DoctorFacts& facts) {
  const NetworkFacts& network = facts.network;
  if (!network.endpoint || network.other_services.empty()) return std::nullopt;
  std::vector<EndpointFacts> services = network.other_services;
  services.insert(services.begin(), *network.endpoint);
  std::vector<std::string> troubles;
  Finding finding;
  for (const EndpointFacts& one : services) {
    const std::string trouble = trouble_of(one);
    finding.details.emplace_back(to_text(one.address), trouble.empty() ? "answers" : trouble);
    if (!trouble.empty()) troubles.push_back(to_text(one.address) + ": " + trouble);
  }
  const std::size_t well = services.size() - troubles.size();
  finding.seen = std::to_string(well) + " of " + std::to_string(services.size()) +
                 " rendezvous services answer";
  if (troubles.empty()) return finding;
  finding.seen += "; " + joined(troubles, "; ");
  finding.rate(well == 0 ? kProblem : kWarning,
               well == 0 ? "nodes wait for a service, then give up"
                         : "a service that does not answer cannot take the place of another one",
               "start ddp-rendezvous there, or repair the way to it");
  return finding;
}

// A leader must write before it decides. Its lease is 2 s.
constexpr Duration kSlowWrite = std::chrono::milliseconds(50);
constexpr Duration kVerySlowWrite = std::chrono::milliseconds(400);
// etcd's default. Not every version says its quota.
constexpr std::int64_t kDefaultQuota = std::int64_t{2} << 30;

std::optional<Finding> judge_etcd(const DoctorFacts& facts) {
  if (!facts.network.etcd) return std::nullopt;
  const EtcdFacts& etcd = *facts.network.etcd;
  std::vector<std::string> troubles;
  std::string version;
  std::int64_t fullest = 0;  // percent
  Finding finding;
  for (const EtcdMember& one : etcd.members) {
    const std::string trouble =
        one.trouble.empty() && !one.has_leader ? "it has no leader" : one.trouble;
    finding.details.emplace_back(to_text(one.address), seconds_of(one.took));
    if (version.empty()) version = one.version;
    fullest = std::max(fullest, 100 * one.size / (one.quota > 0 ? one.quota : kDefaultQuota));
    if (!trouble.empty()) troubles.push_back(to_text(one.address) + ": " + trouble);
  }
  finding.details.emplace_back("version", version);
  finding.details.emplace_back("quota_used_percent", static_cast<int>(fullest));
  finding.seen = "etcd" + (version.empty() ? "" : " " + version) + ": " +
                 std::to_string(etcd.members.size() - troubles.size()) + " of " +
                 std::to_string(etcd.members.size()) + " given members answer";
  const std::size_t given = etcd.members.size() - troubles.size();
  const bool is_split = etcd.cluster_size > 0 && etcd.cluster_size < given;
  if (!troubles.empty()) finding.seen += "; " + joined(troubles, "; ");
  if (etcd.write_took) finding.seen += "; a durable write takes " + to_text(*etcd.write_took);
  constexpr auto kNobodyLeads = "no node can run the service: all wait, then give up";
  if (!etcd.alarms.empty()) {
    finding.seen += "; alarm " + joined(etcd.alarms);
    finding.rate(kProblem, kNobodyLeads,
                 "etcd writes nothing: `etcdctl alarm list`; after NOSPACE compact, defragment, "
                 "then `etcdctl alarm disarm`");
  } else if (!etcd.write_took) {
    finding.seen += "; a write fails: " + etcd.write_trouble;
    finding.rate(
        kProblem, kNobodyLeads,
        "`etcdctl endpoint health --cluster` shows what is wrong; ddprun needs etcd 3.4 or "
        "later, of which more than half of the members run");
  } else if (is_split) {
    finding.seen += concat("; but etcd has only ", etcd.cluster_size, " in its cluster");
    finding.rate(kProblem, "they are several clusters, so the loss of one member ends the job",
                 "give the members of one cluster: `etcdctl member list`. A member that has run "
                 "alone keeps its own cluster until its data directory is removed");
  } else if (*etcd.write_took >= kVerySlowWrite) {
    finding.rate(kProblem, "the leader changes again and again", "give etcd a faster disk");
  } else if (*etcd.write_took >= kSlowWrite) {
    finding.rate(kWarning, "each restart of the job takes longer", "give etcd a faster disk");
  } else if (fullest >= 80) {
    finding.seen += concat("; its data is ", fullest, " % of its quota");
    finding.rate(kWarning, "a full etcd writes nothing, so no node can run the service",
                 "compact and defragment etcd, or raise its --quota-backend-bytes");
  } else if (!troubles.empty()) {
    finding.rate(kWarning, "the loss of another member may stop the job",
                 "repair these members, or correct --rdzv-endpoint");
  }
  return finding;
}

// --- addresses -----------------------------------------------------------------------------------

std::string interfaces_text(const std::vector<NamedAddress>& interfaces) {
  std::vector<std::string> texts;
  for (const NamedAddress& one : interfaces)
    texts.push_back(one.address + " (" + one.interface + ")");
  return joined(texts);
}

Finding judge_local_address(const LocalAddressFacts& local) {
  Finding finding{.seen = "--local-addr " + local.wanted + " means " + local.found,
                  .details = {{"address", local.found}}};
  if (local.found.empty()) {
    finding.seen = "--local-addr " + local.wanted + ": " + local.why;
    finding.rate(kProblem, "the agent does not start: exit code 69",
                 "name an address, a network or an interface that this host has");
  } else if (!local.is_here) {
    finding.seen += ", which is not an address of this host";
    finding.rate(kNote, "correct behind a NAT; otherwise the other nodes do not reach this node",
                 "compare it with this host's addresses");
  }
  return finding;
}

std::optional<Finding> judge_source_address(const DoctorFacts& facts) {
  const NetworkFacts& network = facts.network;
  if (network.local) return judge_local_address(*network.local);
  std::string source;
  if (network.endpoint) {
    const std::vector<ConnectTry>& tries = network.endpoint->tries;
    auto best = std::ranges::find(tries, ConnectTry::Outcome::kConnected, &ConnectTry::outcome);
    if (best == tries.end()) best = tries.begin();
    if (best != tries.end()) source = best->source;
  }
  if (source.empty()) {
    if (network.interfaces.empty()) {
      return Finding{.level = kNote,
                     .seen = "this host has no address but loopback",
                     .effect = "jobs of one node run; other nodes cannot be reached",
                     .advice = "for jobs of several nodes connect it to a network"};
    }
    return Finding{.seen = "this host's addresses: " + interfaces_text(network.interfaces)};
  }
  const auto own = std::ranges::find(network.interfaces, source, &NamedAddress::address);
  const std::string interface = own == network.interfaces.end() ? "" : " (" + own->interface + ")";
  Finding finding{.seen = "for the endpoint this host's address is " + source + interface,
                  .details = {{"address", source}}};
  if (is_loopback_host(source)) {
    finding.seen += "; other nodes get the address at which they reach this host";
  }
  std::vector<NamedAddress> others;
  for (const NamedAddress& one : network.interfaces) {
    const bool same = own != network.interfaces.end() && one.interface == own->interface;
    if (!same && one.address != source) others.push_back(one);
  }
  if (facts.job.several_nodes && !others.empty() && !is_loopback_host(source)) {
    finding.seen += "; it also has " + interfaces_text(others);
    finding.rate(
        kNote,
        "other nodes reach workers here at " + source + ", even if another network is faster",
        "--local-addr=" + others.front().interface +
            " chooses another one; for NCCL and gloo set NCCL_SOCKET_IFNAME and "
            "GLOO_SOCKET_IFNAME");
  }
  return finding;
}

// Returns whether a variable's value names one of the interfaces. NCCL takes prefixes of names,
// '=' before whole names, and '^' before names to exclude. gloo takes whole names.
bool names_an_interface(const std::string& variable, std::string value,
                        const std::vector<std::string>& names) {
  const bool is_nccl = variable.starts_with("NCCL");
  if (is_nccl && value.starts_with('^')) return true;
  const bool whole = !is_nccl || value.starts_with('=');
  if (is_nccl && value.starts_with('=')) value.erase(0, 1);
  for (const std::string_view part : split(value, ',')) {
    const std::string_view wanted = part.substr(0, part.find(':'));
    const bool found = std::ranges::any_of(names, [&](const std::string& name) {
      return whole ? name == wanted : name.starts_with(wanted);
    });
    if (found && !wanted.empty()) return true;
  }
  return false;
}

std::optional<Finding> judge_interface_variables(const DoctorFacts& facts) {
  const NetworkFacts& network = facts.network;
  if (network.interface_variables.empty()) return std::nullopt;
  Finding finding;
  std::vector<std::string> texts;
  std::vector<std::string> wrong;
  for (const auto& [variable, value] : network.interface_variables) {
    texts.push_back(variable + "=" + value);
    if (!names_an_interface(variable, value, network.interface_names))
      wrong.push_back(texts.back());
  }
  finding.seen = joined(texts);
  if (wrong.empty()) return finding;
  finding.seen =
      joined(wrong) + ": this host has no such interface, but " + joined(network.interface_names);
  finding.rate(kProblem, "workers fail when they set up their process group",
               "unset the variable, or name an interface of this host");
  return finding;
}

// --- ports ---------------------------------------------------------------------------------------

bool overlap(PortRange a, PortRange b) { return a.first <= b.last && b.first <= a.last; }

// Returns whether the kernel may give a port of the range to a connection.
bool may_be_taken(PortRange ports, const NetworkFacts& network) {
  if (!network.ephemeral || !overlap(ports, *network.ephemeral)) return false;
  return std::ranges::none_of(network.reserved, [&](PortRange reserved) {
    return reserved.first <= ports.first && ports.last <= reserved.last;
  });
}

void warn_of_ephemeral(Finding& finding, PortRange ports, const NetworkFacts& network) {
  if (finding.level != kOk || !may_be_taken(ports, network)) return;
  finding.seen += "; the kernel gives " + to_text(*network.ephemeral) + " to connections";
  finding.rate(kNote, "a connection may use one of these ports when the job needs it",
               "choose ports below " + std::to_string(network.ephemeral->first) +
                   ", or put them into net.ipv4.ip_local_reserved_ports");
}

std::optional<Finding> judge_endpoint_port(const DoctorFacts& facts) {
  if (!facts.network.endpoint) return std::nullopt;
  const EndpointFacts& endpoint = *facts.network.endpoint;
  const std::string port = "port " + std::to_string(endpoint.address.port);
  Finding finding{.seen = port + " is outside the ports that the kernel gives to connections"};
  if (endpoint.listening) {
    const ListenTry& listening = *endpoint.listening;
    finding.seen = port + " is free here";
    if (!listening.works) {
      finding.seen = port + " cannot be listened on here: " + listening.why;
      if (!listening.holder.empty()) finding.seen += "; " + listening.holder + " uses it";
      finding.rate(kProblem, "this host cannot start the service: exit code 69",
                   "choose another port, or end the program that uses it: `ss -ltnp 'sport = :" +
                       std::to_string(endpoint.address.port) + "'`");
    }
  } else if (!may_be_taken({endpoint.address.port, endpoint.address.port}, facts.network)) {
    return std::nullopt;
  } else {
    finding.seen = port;
  }
  warn_of_ephemeral(finding, {endpoint.address.port, endpoint.address.port}, facts.network);
  return finding;
}

std::optional<Finding> judge_port_range(const DoctorFacts& facts) {
  if (!facts.network.ports) return std::nullopt;
  const PortRangeFacts& ports = *facts.network.ports;
  const int all = ports.range.last - ports.range.first + 1;
  const int needed = 1 + facts.job.workers_here;
  Finding finding{.seen = std::to_string(ports.free) + " of " + std::to_string(all) + " ports of " +
                          to_text(ports.range) + " are free",
                  .details = {{"free", ports.free}, {"needed", needed}}};
  if (ports.free < needed) {
    finding.rate(kProblem,
                 "this node needs " + std::to_string(needed) +
                     ": one for the store and one for each worker of ddprun's library",
                 "give a larger --port-range, or end the programs that use them: `ss -ltnp`");
  }
  warn_of_ephemeral(finding, ports.range, facts.network);
  return finding;
}

}  // namespace

std::vector<Check> network_checks() {
  return {{"host-name", judge_host_name},
          {"name-service", judge_name_service},
          {"address-names", judge_address_names},
          {"endpoint", judge_endpoint},
          {"endpoint-reach", judge_endpoint_reach},
          {"service", judge_service},
          {"services", judge_services},
          {"etcd", judge_etcd},
          {"endpoint-port", judge_endpoint_port},
          {"port-range", judge_port_range},
          {"source-address", judge_source_address},
          {"interface-variables", judge_interface_variables}};
}

}  // namespace ddprun
