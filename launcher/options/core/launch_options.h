// LaunchOptions: the values of a ddprun command line, and the rules for their texts.
//
// launcher/options/command_line.h fills a LaunchOptions from the command line and the
// environment. Everything here is pure. A bad value is a kInvalidArgument Error whose cause
// says what would be right; the caller adds the option's name. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/enum_names.h"
#include "base/host_port.h"
#include "base/result.h"
#include "base/worker_env.h"
#include "launcher/cluster/core/cluster_plan.h"
#include "launcher/machine/core/placement.h"
#include "launcher/machine/core/slot_count.h"
#include "launcher/node_check/core/judgement.h"
#include "launcher/ssh/core/host_list.h"
#include "rendezvous/membership/core/lease.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// --- values of single options -------------------------------------------------------------------

// Parses a word of a table. The error lists the words, and ends with `more`.
template <class Enum, std::size_t N>
Result<Enum> parse_word(const EnumNames<Enum, N>& words, std::string_view text,
                        std::string_view more = "") {
  if (const std::optional<Enum> value = parse_enum(words, text)) return *value;
  std::string expected = "expected ";
  for (std::size_t i = 0; i < N; ++i) {
    expected += i == 0 ? "" : i + 1 < N ? ", " : " or ";
    expected += words[i].second;
  }
  return invalid_value(text, expected.append(more));
}

// Parses a number of nodes: "2" or "1:4".
Result<NodeRange> parse_nodes(std::string_view text);

// Parses --nproc-per-node.
Result<SlotCount> parse_slots(std::string_view text);

// The values of -r and -t: which output streams of which local ranks. "0": none, "1": stdout,
// "2": stderr, "3": both; or "0:3,1:1" for single ranks.
enum class Streams { kNone = 0, kOut = 1, kErr = 2, kBoth = 3 };
constexpr bool has_out(Streams streams) { return (static_cast<int>(streams) & 1) != 0; }
constexpr bool has_err(Streams streams) { return (static_cast<int>(streams) & 2) != 0; }

struct StreamMap {
  Streams all = Streams::kNone;  // for ranks that are not listed
  std::map<int, Streams> by_rank;
  bool asks_for_any() const { return all != Streams::kNone || !by_rank.empty(); }
  Streams of(LocalRank rank) const {
    const auto found = by_rank.find(rank.value);
    return found == by_rank.end() ? all : found->second;
  }
};
Result<StreamMap> parse_streams(std::string_view text);

// Parses --local-ranks-filter: "0,2". Empty: all ranks.
Result<std::set<LocalRank>> parse_local_ranks(std::string_view text);

// Parses "key=value,key=value" of --rdzv-conf.
Result<std::map<std::string, std::string>> parse_rdzv_conf(std::string_view text);

// Parses --umask: octal, from 0 to 777.
Result<std::optional<unsigned>> parse_umask(std::string_view text);

// Parses --env: "NAME=value". Refuses the variables that tell a worker its place.
Result<std::pair<std::string, std::string>> parse_variable(std::string_view text);
// Parses --log-max-bytes: "100M", with K, M or G as powers of 1024. 0: no limit.
Result<std::uint64_t> parse_log_bytes(std::string_view text);

// The values of --log-format: "text" or "json".
enum class LogFormat { kText, kJson };
inline constexpr EnumNames<LogFormat, 2> kLogFormatWords{
    {{LogFormat::kText, "text"}, {LogFormat::kJson, "json"}}};

// The values of --worker-store: which process serves the store through which the workers of a
// generation find each other.
enum class WorkerStore {
  kAgent,  // the agent of rank 0's node, before any worker starts
  kRank0,  // rank 0 itself, as torchrun's workers did before PyTorch 2.5
};
inline constexpr EnumNames<WorkerStore, 2> kWorkerStoreWords{
    {{WorkerStore::kAgent, "agent"}, {WorkerStore::kRank0, "rank0"}}};

// The values of --gpu-visibility: which GPUs each worker sees. kAll: those that its agent sees.
enum class GpuVisibility { kAll, kOwn };
inline constexpr EnumNames<GpuVisibility, 2> kGpuVisibilityWords{{
    {GpuVisibility::kAll, "all"},
    {GpuVisibility::kOwn, "own"},
}};

// The values of --rdzv-backend, as torchrun names them.
enum class RdzvBackend { kC10d, kStatic, kEtcd, kEtcdV2 };
inline constexpr EnumNames<RdzvBackend, 4> kRdzvBackendWords{{
    {RdzvBackend::kC10d, "c10d"},
    {RdzvBackend::kStatic, "static"},
    {RdzvBackend::kEtcd, "etcd"},
    {RdzvBackend::kEtcdV2, "etcd-v2"},
}};
constexpr bool is_etcd(std::optional<RdzvBackend> backend) {
  return backend == RdzvBackend::kEtcd || backend == RdzvBackend::kEtcdV2;
}

// --- the whole command line ---------------------------------------------------------------------

// The task of ddprun: run the job, or show something and start nothing.
enum class LaunchCommand { kRun, kHelp, kVersion, kPrintConfig, kDryRun, kShowBinding };
constexpr bool needs_program(LaunchCommand command) {
  return command == LaunchCommand::kRun || command == LaunchCommand::kDryRun;
}

// The default time between the first signal to workers and SIGKILL. Under Slurm it is shorter
// than Slurm's own KillWait, which is 30 s.
inline constexpr Duration kDefaultGrace = std::chrono::seconds(30);
inline constexpr Duration kDefaultGraceUnderSlurm = std::chrono::seconds(10);

// The default time for ssh to reach a host and start ddprun there.
inline constexpr Duration kDefaultConnectTimeout = std::chrono::seconds(10);
inline constexpr Duration kDefaultSaveBeforeEnd = std::chrono::seconds(60);

// Parses the value of --node-check: limits, such as "memory=4000,link=1000", in MB/s (memory,
// loopback, link, gpu; gpu=0: GPUs are not checked) and ms (core). What is left out has its
// default. Empty: all have.
Result<NodeLimits> parse_node_limits(std::string_view text);

// Parses the name of a signal that can be caught, such as "USR1".
Result<int> parse_checkpoint_signal(std::string_view text);

struct LaunchOptions {
  LaunchCommand command = LaunchCommand::kRun;
  std::string config_file;  // empty: none
  NodeRange nodes;
  SlotCount slots;
  std::optional<int> node_rank;
  std::string rdzv_endpoint;  // host[:port], or several of them; empty: not given
  std::string rdzv_id = kDefaultJobId;
  std::optional<RdzvBackend> rdzv_backend;
  std::map<std::string, std::string> rdzv_conf;
  bool standalone = false;
  bool no_detect = false;
  std::optional<ClusterPlan> cluster;  // set if values were taken from the scheduler
  Taken taken = Taken::kWorkers;
  std::vector<HostEntry> hosts;         // --hosts; empty: not given
  std::string hostfile;                 // empty: not given
  std::vector<std::string> ssh{"ssh"};  // --ssh, split into words
  Duration connect_timeout = kDefaultConnectTimeout;
  std::vector<std::string> copies;  // files of --copy
  int max_restarts = 0;
  RestartRules restart_rules;
  OnJoin on_join = OnJoin::kNow;
  int node_failures = kDefaultNodeFailures;
  std::optional<NodeLimits> node_check;  // nullopt: nodes are not checked
  LeaseTimes times;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
  std::string local_addr;  // as given
  PortRange ports;
  std::string rdzv_key_file;  // empty: none
  std::string munge_socket;   // empty: munge's own default; kNoMunge: not used
  std::string rdzv_tls_cert;  // files; empty: none
  std::string rdzv_tls_key;
  std::string rdzv_tls_ca;
  std::optional<WorkerStore> worker_store;
  bool require_auth = false;
  std::string store_allow;  // addresses and networks, not parsed yet; empty: none
  bool no_python = false;
  bool module = false;
  bool run_path = false;
  bool virtual_local_rank = false;
  std::optional<BindPolicy> bind;
  std::optional<BindPolicy> numa_binding;
  GpuVisibility gpu_visibility = GpuVisibility::kAll;
  std::string log_dir;
  StreamMap redirects;
  StreamMap tee;
  std::uint64_t log_max_bytes = 0;  // of one file; 0: no limit
  bool pty = false;
  bool passes_stdin = false;  // to rank 0
  bool quiet = false;
  bool verbose = false;
  LogFormat log_format = LogFormat::kText;
  std::set<LocalRank> shown_ranks;  // ranks whose output the console gets; empty: all
  std::string role = kDefaultRole;
  std::string report_file;  // empty: none
  std::string on_end;       // a command; empty: none
  std::string on_failure;   // likewise
  std::optional<Duration> grace;
  // The value as given. plan_rendezvous() checks that grace is not given, too.
  std::optional<Duration> shutdown_timeout;
  std::string line_prefix;                  // of -t; empty: the variable, or torchrun's default
  Duration hang_timeout{};                  // zero: hangs are not detected
  int checkpoint_signal = 0;                // 0: none
  std::optional<int> requeue;               // how often a job of Slurm may be requeued
  std::optional<Duration> save_before_end;  // of the time limit of a job of Slurm
  std::string directory;                    // --chdir, where workers run; empty: where ddprun runs
  std::optional<unsigned> file_mask;        // --umask
  std::vector<std::pair<std::string, std::string>> variables;  // --env; they override all others
  std::string program;
  std::vector<std::string> args;
  std::vector<std::string> remarks;  // options that were given and do nothing here, with the reason

  bool watches_time_limit() const { return requeue || save_before_end; }
  bool has_agent_store() const { return worker_store != WorkerStore::kRank0; }
  bool uses_ssh() const { return !hosts.empty() || !hostfile.empty(); }
  bool shows(LocalRank rank) const { return shown_ranks.empty() || shown_ranks.contains(rank); }
  BindPolicy bind_policy() const { return bind.value_or(numa_binding.value_or(BindPolicy::kNone)); }
};

// EtcdPlace: etcd, where the agents of a job elect the one that runs the service.
struct EtcdPlace {
  std::vector<HostPort> members;
  std::string prefix;  // of the keys of this job
  bool uses_tls = false;
  std::string ca;  // files; empty: this system's authorities, and no certificate to show
  std::string cert;
  std::string key;
};

// Rendezvous: how the nodes find each other.
struct Rendezvous {
  enum class Mode {
    kLocal,    // one node: only the store listens, on loopback
    kDynamic,  // a service at endpoint; if none runs, the node with that address starts it
    kStatic,   // torchrun's static backend: node rank 0 serves everything there
    kEtcd,     // each agent has a service, and one of them leads
  };
  Mode mode = Mode::kLocal;
  HostPort endpoint;
  // Services with the same state as that at endpoint. If there are some, no node starts one.
  std::vector<HostPort> other_services;
  EtcdPlace etcd;  // kEtcd
  // Ports of that host where the service is if endpoint's is taken, in order. Empty: the user
  // or the scheduler gave the port.
  std::vector<std::uint16_t> next_ports;
  Duration join_timeout = kDefaultJoinTimeout;
  Duration last_call = kDefaultLastCall;
  std::vector<std::string> remarks;  // options that were given and do nothing here, with the reason

  bool is_local() const { return mode == Mode::kLocal; }
};

// Returns where the service is, or where the services are: "r1:29400, r2:29400".
std::string services_text(const Rendezvous& plan);

inline constexpr std::uint16_t kDefaultRdzvPort = 29400;  // as torchrun's

// Returns the address on which a node that serves the whole job should listen: "*", or its
// loopback address alone. For several nodes, the host as the user wrote it decides. A resolved
// address cannot decide: on Debian, a host's own name resolves on that host to 127.0.1.1, where
// no other node can connect. A job of one node listens on the address that its endpoint
// resolves to, if that is loopback.
struct ServiceAddress {
  std::string host;      // as given
  std::string resolved;  // this host's address that `host` resolves to, numeric
};
std::string listening_host(const ServiceAddress& address, const NodeRange& nodes);

// Checks that the options for output fit together. The error names the option. Options that
// have no effect are listed in options.remarks.
Result<void> check_output(LaunchOptions& options);

// Checks that the options fit together, and returns how the nodes find each other. The error
// names the option.
Result<Rendezvous> plan_rendezvous(const LaunchOptions& options);

}  // namespace ddprun
