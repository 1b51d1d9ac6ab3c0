#include "launcher/doctor/facts.h"

#include <net/if.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/background_thread.h"
#include "base/version.h"
#include "base/worker_env.h"
#include "launcher/doctor/gpus.h"
#include "launcher/doctor/machine.h"
#include "launcher/doctor/names.h"
#include "launcher/doctor/ports.h"
#include "launcher/plan/program.h"
#include "launcher/process/side_by_side.h"
#include "rendezvous/net/local_address.h"

namespace ddprun {
namespace {

bool is_link_local(const std::string& address) {
  return address.starts_with("fe80:") || address.starts_with("169.254.");
}

std::vector<NamedAddress> addresses_for_others() {
  std::vector<NamedAddress> found;
  for (const InterfaceAddress& one : interface_addresses()) {
    const std::string address = one.address.host();
    if (is_loopback_address(one.address) || is_link_local(address)) continue;
    found.push_back({one.interface, address});
  }
  return found;
}

std::vector<std::string> interface_names() {
  const std::unique_ptr<struct if_nameindex, decltype(&if_freenameindex)> all(if_nameindex(),
                                                                              &if_freenameindex);
  std::vector<std::string> names;
  for (const auto* one = all.get(); one && one->if_name; ++one) names.emplace_back(one->if_name);
  return names;
}

LocalAddressFacts look_at_local_address(const std::string& wanted) {
  LocalAddressFacts facts{.wanted = wanted};
  const Result<std::string> found =
      find_local_address(wanted, interface_addresses(), kLookUpPatience);
  if (!found) {
    facts.why = found.error().message();
    return facts;
  }
  facts.found = *found;
  const std::optional<SocketAddress> numeric = numeric_address({*found, 0});
  facts.is_here = numeric && is_local_address(*numeric);
  return facts;
}

NetworkFacts look_at_network(const LaunchOptions& options) {
  NetworkFacts facts{.interfaces = addresses_for_others(),
                     .ephemeral = ephemeral_ports(),
                     .reserved = reserved_ports(),
                     .interface_names = interface_names()};
  if (!options.local_addr.empty()) facts.local = look_at_local_address(options.local_addr);
  if (options.ports != PortRange{}) facts.ports = count_free(options.ports);
  for (const char* name : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    const std::optional<std::string> value = environment_variable(name);
    if (value && !value->empty()) facts.interface_variables.emplace_back(name, *value);
  }
  return facts;
}

// Looks up the names of the addresses at which workers of this host may meet, in addition to the
// addresses of the endpoint.
std::vector<LookUp> look_up_own_addresses(const std::vector<NamedAddress>& own) {
  constexpr std::size_t kMost = 4;
  std::vector<std::string> addresses{"127.0.0.1"};
  for (const NamedAddress& one : own) {
    const bool is_ipv4 = one.address.find(':') == std::string::npos;
    if (is_ipv4 && addresses.size() < kMost) addresses.push_back(one.address);
  }
  std::vector<LookUp> seen;
  std::vector<std::function<void()>> bodies;
  look_at_each(addresses, look_up_address, seen, bodies);
  side_by_side(std::move(bodies));
  return seen;
}

// Returns the look-ups of both, each address once.
std::vector<LookUp> merged(std::vector<LookUp> first, const std::vector<LookUp>& second) {
  for (const LookUp& one : second) {
    const bool known = std::ranges::count(first, one.asked, &LookUp::asked) > 0;
    if (!known) first.push_back(one);
  }
  return first;
}

std::string trouble_with_program(const LaunchOptions& options) {
  if (options.program.empty()) return "";
  const Result<WorkerCommand> command = find_program(options);
  return command ? "" : command.error().message();
}

JobRequest job_of(const DoctorRequest& request, const GpuFacts& gpus, const MachineFacts& machine) {
  const SlotCount& slots = request.options.slots;
  JobRequest job{.several_nodes = request.several_nodes,
                 .workers_here = slots.number,
                 .wants_gpus = slots.kind == SlotCount::Kind::kGpus};
  const bool counts_gpus = job.wants_gpus || slots.kind == SlotCount::Kind::kAuto;
  if (counts_gpus) job.workers_here = gpus.visible_count;
  const bool counts_cores = slots.kind == SlotCount::Kind::kCpus ||
                            (slots.kind == SlotCount::Kind::kAuto && gpus.visible_count == 0);
  if (counts_cores) job.workers_here = machine.usable_cores;
  job.workers_here = std::max(1, job.workers_here);
  return job;
}

// Returns look(), or `otherwise` if that does not finish within `allowed`: a file system that a
// server provides may hang without limit. If no thread can be started, calls look() on this
// thread.
template <class Facts>
Facts unless_it_hangs(Duration allowed, Facts otherwise, const std::function<Facts()>& look) {
  const auto seen =
      result_within<Facts>(allowed, "look", [look]() -> Result<Facts> { return look(); });
  if (!seen) return otherwise;
  return *seen ? **seen : look();
}

constexpr Duration kDiskPatience = std::chrono::seconds(3);
constexpr Duration kNcclPatience = std::chrono::seconds(8);

const std::string kDiskHangs = "the file system did not answer within " + to_text(kDiskPatience);

}  // namespace

DoctorFacts collect_facts(const DoctorRequest& request) {
  DoctorFacts facts{.version = kVersion, .host = host_name()};
  EndpointSeen endpoint;
  std::vector<LookUp> own_names;
  std::vector<std::function<void()>> bodies{
      [&] { facts.names = look_at_names(); },
      [&] { own_names = look_up_own_addresses(addresses_for_others()); },
      [&] { facts.gpus = look_at_gpus(); },
      [&] {
        facts.nccl =
            unless_it_hangs<NcclFacts>(kNcclPatience, {.hangs = true},
                                       [given = request.libtorch] { return look_at_nccl(given); });
      },
      [&] {
        facts.temporary = unless_it_hangs<Space>(
            kDiskPatience, {.path = "the directory", .why_not_writable = kDiskHangs},
            look_at_temporary);
      },
      [&] {
        facts.program_error = unless_it_hangs<std::string>(
            kDiskPatience, request.options.program + ": " + kDiskHangs,
            [options = request.options] { return trouble_with_program(options); });
      },
      [&] { facts.network = look_at_network(request.options); },
      [&] {
        facts.shared_memory = look_at_shared_memory();
        facts.limits = look_at_limits();
        facts.cgroup = look_at_cgroups();
        facts.machine = look_at_machine();
        facts.clock = look_at_clock();
        facts.debuggers = look_at_debuggers();
      }};
  if (request.endpoint) bodies.push_back([&] { endpoint = look_at_endpoint(*request.endpoint); });
  std::optional<EtcdFacts> etcd;
  if (request.etcd) bodies.push_back([&] { etcd = look_at_etcd(*request.etcd); });
  std::vector<EndpointFacts> others(request.other_services.size());
  for (std::size_t i = 0; i < request.other_services.size(); ++i) {
    bodies.push_back([&, i] {
      EndpointRequest other = *request.endpoint;
      other.address = request.other_services[i];
      others[i] = look_at_endpoint(other).facts;
    });
  }
  side_by_side(std::move(bodies));
  facts.network.other_services = std::move(others);
  facts.network.etcd = std::move(etcd);
  facts.names.of_addresses = merged(std::move(own_names), endpoint.names);
  if (request.endpoint) facts.network.endpoint = std::move(endpoint.facts);
  facts.job = job_of(request, facts.gpus, facts.machine);
  return facts;
}

}  // namespace ddprun
