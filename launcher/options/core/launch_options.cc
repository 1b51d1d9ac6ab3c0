#include "launcher/options/core/launch_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <tuple>

#include "base/concat.h"
#include "base/joined.h"
#include "base/missing_value.h"
#include "base/nearest_word.h"
#include "base/parse_number.h"
#include "base/seconds.h"
#include "base/signal_names.h"
#include "base/split.h"
#include "rendezvous/persistence/core/state_place.h"

namespace ddprun {
namespace {

Error refused(std::string_view option, std::string why) {
  return invalid_argument(std::move(why)).within(option);
}

std::string in_quotes(std::string_view text) { return "'" + std::string(text) + "'"; }

std::optional<Streams> parse_stream(std::string_view text) {
  const std::optional<int> value = parse_number<int>(text);
  if (!value || *value < 0 || *value > 3) return std::nullopt;
  return static_cast<Streams>(*value);
}

}  // namespace

Result<NodeRange> parse_nodes(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ':');
  const std::optional<int> min = parse_number<int>(parts.front());
  const std::optional<int> max = parse_number<int>(parts.back());
  if (parts.size() > 2 || !min || !max) {
    return invalid_value(text, "expected N or MIN:MAX");
  }
  if (*min < 1) return invalid_value(text, "a job needs at least 1 node");
  if (*max > kMaxNodes) {
    return invalid_value(text, "a job has at most " + std::to_string(kMaxNodes) + " nodes");
  }
  if (*min > *max) {
    return invalid_value(text, "MIN is larger than MAX; did you mean " + std::to_string(*max) +
                                   ":" + std::to_string(*min) + "?");
  }
  return NodeRange{*min, *max};
}

Result<SlotCount> parse_slots(std::string_view text) {
  if (text == "cpu") return SlotCount{SlotCount::Kind::kCpus, 0};
  if (text == "gpu") return SlotCount{SlotCount::Kind::kGpus, 0};
  if (text == "auto") return SlotCount{SlotCount::Kind::kAuto, 0};
  const std::optional<int> number = parse_number<int>(text);
  if (!number) return invalid_value(text, "expected a number, cpu, gpu or auto");
  if (*number < 1) return invalid_value(text, "a node needs at least 1 worker");
  if (*number > kMaxSlots) {
    return invalid_value(text, "a node has at most " + std::to_string(kMaxSlots) + " workers");
  }
  return SlotCount{SlotCount::Kind::kNumber, *number};
}

Result<StreamMap> parse_streams(std::string_view text) {
  const auto wrong = [&] {
    return invalid_value(text, "expected 0: none, 1: stdout, 2: stderr, 3: both, or RANK:N,RANK:N");
  };
  StreamMap map;
  if (text.find(':') == std::string_view::npos) {
    const std::optional<Streams> all = parse_stream(text);
    if (!all) return wrong();
    map.all = *all;
    return map;
  }
  for (const std::string_view entry : split(text, ',')) {
    const std::vector<std::string_view> parts = split(entry, ':');
    if (parts.size() != 2) return wrong();
    const std::optional<int> rank = parse_number<int>(parts[0]);
    const std::optional<Streams> streams = parse_stream(parts[1]);
    if (!rank || *rank < 0 || !streams) return wrong();
    map.by_rank[*rank] = *streams;
  }
  return map;
}

Result<std::map<std::string, std::string>> parse_rdzv_conf(std::string_view text) {
  std::map<std::string, std::string> conf;
  if (text.empty()) return conf;
  for (const std::string_view entry : split(text, ',')) {
    const std::size_t at = entry.find('=');
    if (at == std::string_view::npos || at == 0) {
      return invalid_value(entry, "expected KEY=VALUE");
    }
    conf[std::string(entry.substr(0, at))] = std::string(entry.substr(at + 1));
  }
  return conf;
}

Result<NodeLimits> parse_node_limits(std::string_view text) {
  constexpr const char* kExpected =
      "expected limits such as memory=4000,loopback=100,link=1000,gpu=50000 in MB/s, core=20 in ms";
  constexpr double kMost = 1e9;
  NodeLimits limits;
  if (text.empty()) return limits;
  for (const std::string_view entry : split(text, ',')) {
    const std::size_t at = entry.find('=');
    if (at == std::string_view::npos) return invalid_value(text, kExpected);
    const std::string_view name = entry.substr(0, at);
    const std::optional<double> value = parse_number<double>(entry.substr(at + 1));
    const bool is_off = name == "gpu" && value == 0;
    if (!value || !((*value > 0 || is_off) && *value <= kMost))
      return invalid_value(entry, kExpected);
    if (name == "core") {
      limits.core = std::chrono::round<Duration>(std::chrono::duration<double, std::milli>(*value));
    } else if (name == "memory") {
      limits.memory = *value * 1e6;
    } else if (name == "loopback") {
      limits.loopback = *value * 1e6;
    } else if (name == "link") {
      limits.link = *value * 1e6;
    } else if (name == "gpu") {
      limits.gpu = *value * 1e6;
    } else {
      return invalid_value(entry, kExpected);
    }
  }
  return limits;
}

Result<int> parse_checkpoint_signal(std::string_view text) {
  const std::optional<int> signal = signal_by_name(text);
  constexpr std::array kTaken{SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
  if (signal && std::ranges::count(kTaken, *signal) > 0) return *signal;
  return invalid_value(text, "expected USR1, USR2, TERM, HUP or INT");
}

Result<std::uint64_t> parse_log_bytes(std::string_view text) {
  constexpr std::uint64_t kLeast = 4096;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 50;
  constexpr std::string_view kUnits = "KMG";
  std::string_view digits = text;
  int shift = 0;
  if (const std::size_t unit = text.empty() ? kUnits.npos : kUnits.find(text.back());
      unit != kUnits.npos) {
    shift = 10 * (static_cast<int>(unit) + 1);
    digits.remove_suffix(1);
  }
  const std::optional<std::uint64_t> number = parse_number<std::uint64_t>(digits);
  const bool is_good = number && *number <= (kMost >> shift);
  const std::uint64_t bytes = is_good ? *number << shift : 1;
  if (bytes != 0 && bytes < kLeast) {
    return invalid_value(
        text, "expected a size such as 4096, 512K, 100M or 1G, at least 4096 bytes; 0: no limit");
  }
  return bytes;
}

namespace {

// Removes spaces at both ends, which Python's int() accepts.
std::string_view without_spaces(std::string_view text) {
  const std::size_t first = std::min(text.find_first_not_of(' '), text.size());
  return text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

}  // namespace

Result<std::set<LocalRank>> parse_local_ranks(std::string_view text) {
  std::set<LocalRank> ranks;
  if (text.empty()) return ranks;
  for (const std::string_view entry : split(text, ',')) {
    const std::optional<int> rank = parse_number<int>(without_spaces(entry));
    if (!rank || *rank < 0) return invalid_value(text, "expected local ranks, such as 0,2");
    ranks.insert(LocalRank(*rank));
  }
  return ranks;
}

namespace {

// Parses --rdzv-endpoint, which must name a host.
Result<HostPort> parse_endpoint(std::string_view text, std::uint16_t default_port) {
  Result<HostPort> endpoint = parse_host_port(text, default_port);
  if (!endpoint) return refused("--rdzv-endpoint", endpoint.error().cause);
  if (!endpoint->host.empty()) return endpoint;
  return invalid_value(text, "the host is missing; expected HOST:PORT").within("--rdzv-endpoint");
}

// Parses an --rdzv-endpoint that may name several services. The port of an entry counts for it
// alone.
Result<std::vector<HostPort>> parse_services(const std::string& text, std::uint16_t default_port) {
  constexpr std::size_t kMostServices = 16;
  std::vector<HostPort> services;
  const auto bad = [&text](std::string why) {
    return invalid_value(text, std::move(why)).within("--rdzv-endpoint");
  };
  for (const std::string_view entry : split(text, ',')) {
    if (entry.empty()) return bad("an entry is empty; expected HOST[:PORT],HOST[:PORT],...");
    Result<HostPort> one = parse_endpoint(entry, default_port);
    if (!one) return one.error();
    if (one->port == 0) return bad("0 cannot be used: nodes must know the port of each service");
    if (std::ranges::count(services, *one) > 0) return bad(to_text(*one) + " is named twice");
    services.push_back(std::move(*one));
  }
  if (services.size() > kMostServices) {
    return bad("at most " + std::to_string(kMostServices) + " services can be given");
  }
  return services;
}

constexpr const char* kMasterHasNoEffect =
    "--master-addr and --master-port have no effect: with --rdzv-endpoint each generation has its "
    "own store";
constexpr const char* kMustKnowPort =
    "0 cannot be used with several nodes: they must know the port";

// Keys of torchrun's --rdzv-conf that have a meaning only for torchrun's own implementation.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kForeignConf{{
    {"close_timeout", "the verdict ends a job"},
    {"heartbeat_timeout", "use --lease of ddprun or ddp-rendezvous"},
    {"keep_alive_interval", "use --heartbeat-interval of ddprun or ddp-rendezvous"},
    {"keep_alive_max_attempt", "use --lease of ddprun or ddp-rendezvous"},
    {"read_timeout", "ddprun does not poll"},
    {"is_host", "the node that has the endpoint's address starts the service"},
    {"store_type", "the store is always ddprun's own"},
}};

// Checks that --node-rank is below the number of nodes. Called where the node rank has an
// effect.
Result<void> check_node_rank(const LaunchOptions& options) {
  if (!options.node_rank || *options.node_rank < options.nodes.max) return {};
  const std::string most = std::to_string(options.nodes.max - 1);
  return invalid_value(std::to_string(*options.node_rank),
                       "expected " + (options.nodes.max == 1 ? "0" : "0 to " + most) +
                           " with --nnodes=" + std::to_string(options.nodes.max))
      .within("--node-rank");
}

// The keys of --rdzv-conf that concern etcd, as torchrun's etcd backends have them.
constexpr std::array<std::string_view, 5> kEtcdConf{"protocol", "cacert", "cert", "key",
                                                    "etcd_prefix"};

// Returns the job's id as a part of a key of etcd. The prefix of one job must not begin that of
// another.
std::string as_key(const std::string& job) {
  std::string key;
  for (const char c : job) key += c == '/' ? "%2F" : c == '%' ? "%25" : std::string(1, c);
  return key;
}

// Plans a job whose agents elect the one that runs the service.
Result<EtcdPlace> plan_etcd(const LaunchOptions& options) {
  constexpr std::uint16_t kEtcdPort = 2379;
  if (options.rdzv_endpoint.empty()) {
    return refused(
        "--rdzv-endpoint",
        concat("--rdzv-backend=", enum_name(kRdzvBackendWords, *options.rdzv_backend),
               " needs the address of etcd: give HOST[:PORT], or several of its members"));
  }
  Result<std::vector<HostPort>> members = parse_services(options.rdzv_endpoint, kEtcdPort);
  if (!members) return members.error();
  const auto conf = [&options](const char* key) {
    const auto found = options.rdzv_conf.find(key);
    return found == options.rdzv_conf.end() ? std::string() : found->second;
  };
  EtcdPlace place{.members = std::move(*members),
                  .prefix = conf("etcd_prefix"),
                  .ca = conf("cacert"),
                  .cert = conf("cert"),
                  .key = conf("key")};
  const std::string protocol = conf("protocol");
  if (!protocol.empty() && protocol != "http" && protocol != "https") {
    return refused("--rdzv-conf",
                   "protocol: invalid value '" + protocol + "' (expected http or https)");
  }
  place.uses_tls = protocol == "https";
  if (!place.uses_tls && !(place.ca + place.cert + place.key).empty()) {
    return refused("--rdzv-conf", "cacert, cert and key need protocol=https");
  }
  if (place.cert.empty() != place.key.empty()) {
    return refused("--rdzv-conf", "cert and key are needed together");
  }
  if (place.prefix.ends_with('/')) place.prefix.pop_back();
  if (!is_etcd_prefix(place.prefix)) {
    return refused("--rdzv-conf",
                   concat("etcd_prefix: invalid value '", conf("etcd_prefix"),
                          "' (expected a path of at most ", StatePlace::kMaxPrefixBytes,
                          " bytes, such as /team/jobs)"));
  }
  if (options.rdzv_id == kDefaultJobId) {
    return missing_value("--rdzv-id",
                         "a name for the job: nodes that give the same name form one job");
  }
  if (place.prefix.empty()) place.prefix = "/ddprun-jobs";
  place.prefix += "/" + as_key(options.rdzv_id);
  return place;
}

// Returns a remark. torchrun passes all keys on to its backend, which ignores unknown ones.
std::string remark_on_unknown_conf(const std::vector<std::string>& unknown) {
  static const std::vector<std::string> kKnown{"join_timeout", "last_call_timeout"};
  std::string text = "--rdzv-conf: unknown keys are ignored, as with torchrun: ";
  for (const std::string& key : unknown) {
    if (&key != &unknown.front()) text += ", ";
    text += in_quotes(key);
    if (const std::string near = nearest_word(key, kKnown); !near.empty()) {
      text += " (did you mean " + near + "?)";
    }
  }
  return text;
}

Result<void> apply_conf(const LaunchOptions& options, Rendezvous& plan) {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : options.rdzv_conf) {
    const auto seconds = [&key = key, &value = value](Duration& target) -> Result<void> {
      const Result<Duration> parsed = parse_seconds(value);
      if (!parsed) return refused("--rdzv-conf", key + ": " + parsed.error().cause);
      target = *parsed;
      return {};
    };
    Result<void> ok;
    if (key == "join_timeout" || key == "timeout") {
      ok = seconds(plan.join_timeout);
    } else if (key == "last_call_timeout") {
      ok = seconds(plan.last_call);
    } else {
      const auto foreign =
          std::ranges::find(kForeignConf, key, [](const auto& row) { return row.first; });
      if (is_etcd(options.rdzv_backend) && std::ranges::count(kEtcdConf, key) > 0) continue;
      if (foreign == kForeignConf.end()) {
        unknown.push_back(key);
      } else {
        plan.remarks.push_back("--rdzv-conf " + key +
                               " has no effect: " + std::string(foreign->second));
      }
    }
    if (!ok) return ok;
  }
  if (!unknown.empty()) plan.remarks.push_back(remark_on_unknown_conf(unknown));
  return {};
}

// Checks what holds for each way in which nodes find each other.
Result<void> check_options(const LaunchOptions& options) {
  const std::tuple<bool, std::string_view, std::string_view> contradictions[] = {
      {options.no_python && options.module, "--no-python",
       "cannot be used with -m: python runs a module"},
      {options.master_addr && options.master_addr->empty(), "--master-addr",
       "empty value (expected the address of node rank 0)"},
      {options.bind && options.numa_binding, "--numa-binding", "cannot be used with --bind"},
      {options.grace && options.shutdown_timeout, "--shutdown-timeout",
       "cannot be used with --shutdown-grace"},
      {options.run_path && options.module, "--run-path",
       "cannot be used with -m: a module has no path"},
  };
  for (const auto& [is_given, option, why] : contradictions) {
    if (is_given) return refused(option, std::string(why));
  }
  for (const auto& [text, name] :
       {std::pair(&options.rdzv_id, "--rdzv-id"), std::pair(&options.local_addr, "--local-addr")}) {
    const std::string why = why_no_name(*text);
    if (!why.empty()) return refused(name, "it " + why);
  }
  if (auto ok = check_lease(options.times); !ok) return ok;
  if (!options.has_agent_store() && options.on_join == OnJoin::kCheckpoint) {
    return refused("--worker-store",
                   "rank0 cannot be used with --on-join=checkpoint: workers announce checkpoints "
                   "in the agent's store");
  }
  return {};
}

bool has_master(const LaunchOptions& options) { return options.master_addr || options.master_port; }

bool has_list(const LaunchOptions& options) {
  return options.rdzv_endpoint.find(',') != std::string::npos;
}

// The functions below add a way for the nodes to find each other to `plan`, which has what all
// ways share: times and remarks.

Result<Rendezvous> plan_standalone(const LaunchOptions& options, Rendezvous plan) {
  if (options.nodes.max != 1) {
    return refused("--nnodes", "cannot be used with --standalone, a job of one node");
  }
  for (const auto& [given, name] : {std::pair(!options.rdzv_endpoint.empty(), "--rdzv-endpoint"),
                                    std::pair(options.master_addr.has_value(), "--master-addr"),
                                    std::pair(options.master_port.has_value(), "--master-port"),
                                    std::pair(options.rdzv_backend.has_value(), "--rdzv-backend"),
                                    std::pair(options.rdzv_id != kDefaultJobId, "--rdzv-id"),
                                    std::pair(options.node_rank.has_value(), "--node-rank")}) {
    if (given)
      plan.remarks.push_back(std::string(name) + " has no effect: --standalone chooses it");
  }
  return plan;
}

Result<Rendezvous> plan_election(const LaunchOptions& options, Rendezvous plan) {
  plan.mode = Rendezvous::Mode::kEtcd;
  if (auto ok = check_node_rank(options); !ok) return ok.error();
  Result<EtcdPlace> place = plan_etcd(options);
  if (!place) return place.error();
  plan.etcd = std::move(*place);
  if (has_master(options)) plan.remarks.push_back(kMasterHasNoEffect);
  return plan;
}

Result<Rendezvous> plan_static(const LaunchOptions& options, Rendezvous plan) {
  plan.mode = Rendezvous::Mode::kStatic;
  if (auto ok = check_node_rank(options); !ok) return ok.error();
  if (options.nodes.min != options.nodes.max) {
    return refused("--nnodes",
                   "the static backend needs a fixed number of nodes (for MIN:MAX use "
                   "--rdzv-endpoint HOST:PORT)");
  }
  plan.endpoint = {options.master_addr.value_or("127.0.0.1"),
                   static_cast<std::uint16_t>(options.master_port.value_or(kDefaultMasterPort))};
  if (!options.rdzv_endpoint.empty()) {
    auto endpoint = parse_endpoint(options.rdzv_endpoint, kDefaultMasterPort);
    if (!endpoint) return endpoint.error();
    plan.endpoint = std::move(*endpoint);
  }
  if (options.nodes.max > 1 && is_loopback_host(plan.endpoint.host) && !options.master_addr &&
      options.rdzv_endpoint.empty()) {
    return refused("--nnodes",
                   "several nodes need a common address: add --rdzv-endpoint HOST:PORT (or "
                   "--master-addr and --node-rank)");
  }
  if (plan.endpoint.port == 0 && options.nodes.max > 1) {
    return refused("--master-port", kMustKnowPort);
  }
  return plan;
}

// Plans one node without an endpoint: as --standalone.
Result<Rendezvous> plan_without_endpoint(const LaunchOptions& options, Rendezvous plan) {
  if (options.nodes.max > 1) {
    return refused("--rdzv-endpoint", "several nodes need a common address: give HOST:PORT");
  }
  // torchrun's c10d backend needs no node rank.
  if (!options.rdzv_backend) {
    if (auto ok = check_node_rank(options); !ok) return ok.error();
  } else if (options.node_rank) {
    plan.remarks.push_back("--node-rank has no effect: the job has one node");
  }
  return plan;
}

Result<Rendezvous> plan_dynamic(const LaunchOptions& options, Rendezvous plan) {
  plan.mode = Rendezvous::Mode::kDynamic;
  if (auto ok = check_node_rank(options); !ok) return ok.error();
  if (has_list(options)) {
    Result<std::vector<HostPort>> services =
        parse_services(options.rdzv_endpoint, kDefaultRdzvPort);
    if (!services) return services.error();
    plan.endpoint = services->front();
    plan.other_services.assign(services->begin() + 1, services->end());
  } else {
    auto endpoint = parse_endpoint(options.rdzv_endpoint, kDefaultRdzvPort);
    if (!endpoint) return endpoint.error();
    plan.endpoint = std::move(*endpoint);
    if (plan.endpoint.port == 0 && options.nodes.max > 1) {
      return refused("--rdzv-endpoint", kMustKnowPort);
    }
    // Other ports are tried only for a single service.
    if (options.cluster && options.taken == Taken::kNodes &&
        plan.endpoint == options.cluster->endpoint) {
      plan.next_ports = options.cluster->next_ports;
    }
  }
  if (has_master(options)) plan.remarks.push_back(kMasterHasNoEffect);
  return plan;
}

}  // namespace

std::string services_text(const Rendezvous& plan) {
  std::vector<HostPort> places{plan.endpoint};
  places.insert(places.end(), plan.other_services.begin(), plan.other_services.end());
  const bool has_etcd = plan.mode == Rendezvous::Mode::kEtcd;
  std::vector<std::string> texts;
  for (const HostPort& one : has_etcd ? plan.etcd.members : places) texts.push_back(to_text(one));
  return (has_etcd ? "etcd " : "") + joined(texts);
}

std::string listening_host(const ServiceAddress& address, const NodeRange& nodes) {
  const bool only_here = is_loopback_host(nodes.max > 1 ? address.host : address.resolved);
  return only_here ? address.resolved : "*";
}

Result<void> check_output(LaunchOptions& options) {
  if (options.quiet && options.verbose) {
    return refused("--quiet", "cannot be used with --verbose");
  }
  const bool has_no_directory = options.log_dir == "/dev/null";
  for (const auto& [name, streams] : {std::pair("-r", &options.redirects), {"-t", &options.tee}}) {
    if (!has_no_directory || !streams->asks_for_any()) continue;
    options.remarks.push_back(std::string(name) +
                              " has no effect: with --log-dir=/dev/null there are no log files; "
                              "all lines go to the console");
  }
  const bool has_files =
      !has_no_directory && (options.redirects.asks_for_any() || options.tee.asks_for_any());
  if (options.log_max_bytes > 0 && !has_files) {
    options.remarks.push_back("--log-max-bytes has no effect without log files (-r or -t)");
  }
  return {};
}

Result<Rendezvous> plan_rendezvous(const LaunchOptions& options) {
  if (auto ok = check_options(options); !ok) return ok.error();
  Rendezvous plan;
  if (!options.has_agent_store() && !options.store_allow.empty()) {
    plan.remarks.push_back(
        "--store-allow has no effect: rank 0 serves the store and decides who may use it");
  }
  if (auto ok = apply_conf(options, plan); !ok) return ok.error();
  if (options.standalone) return plan_standalone(options, std::move(plan));

  const std::optional<RdzvBackend> backend = options.rdzv_backend;
  if (is_etcd(backend)) return plan_election(options, std::move(plan));
  if (has_list(options) && backend) {
    return refused("--rdzv-endpoint",
                   concat("several services cannot be used with --rdzv-backend=",
                          enum_name(kRdzvBackendWords, *backend),
                          ", where a node of the job serves: give one HOST[:PORT], or leave out "
                          "--rdzv-backend if ddp-rendezvous runs on these hosts"));
  }
  const bool has_endpoint = !options.rdzv_endpoint.empty();
  const bool wants_static =
      backend == RdzvBackend::kStatic ||
      (!backend && !has_endpoint && (has_master(options) || options.nodes.max > 1));
  if (wants_static) return plan_static(options, std::move(plan));
  return has_endpoint ? plan_dynamic(options, std::move(plan))
                      : plan_without_endpoint(options, std::move(plan));
}

Result<std::optional<unsigned>> parse_umask(std::string_view text) {
  unsigned mask = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mask, 8);
  if (error != std::errc() || end != text.data() + text.size() || mask > 0777) {
    return invalid_value(text, "expected an octal number from 0 to 777, such as 027");
  }
  return std::optional<unsigned>(mask);
}

Result<std::pair<std::string, std::string>> parse_variable(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return invalid_value(text, "expected NAME=VALUE, or the NAME of a variable that is set here");
  }
  const std::string_view name = text.substr(0, equals);
  // Variables that workers get but that do not describe a worker's place.
  constexpr std::array kFree{std::string_view("OMP_NUM_THREADS"),
                             std::string_view("CUDA_VISIBLE_DEVICES"),
                             std::string_view("TORCH_NCCL_ASYNC_ERROR_HANDLING")};
  if (std::ranges::count(worker_variables(), name) > 0 && std::ranges::count(kFree, name) == 0) {
    return invalid_argument(
        std::string(name) +
        " cannot be set: ddprun gives it a value for each worker, or for each start of the job");
  }
  return std::pair(std::string(name), std::string(text.substr(equals + 1)));
}

}  // namespace ddprun
