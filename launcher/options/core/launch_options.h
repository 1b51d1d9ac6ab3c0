// What a ddprun command line means: plain values, and the rules that texts must follow.
//
// launcher/options/command_line.h fills a LaunchOptions from the command line and the environment;
// everything here is pure. A bad value is a kInvalidArgument Error whose cause says what would be
// right; the caller adds the option's name. Any thread.
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
#include "launcher/machine/core/placement.h"
#include "launcher/machine/core/slot_count.h"
#include "rendezvous/membership/core/lease.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// --- values of single options -------------------------------------------------------------------

// "2" or "1:4": how many nodes.
Result<NodeRange> parse_nodes(std::string_view text);

// --nproc-per-node.
Result<SlotCount> parse_slots(std::string_view text);

// -r and -t: which output streams of which local ranks. "0" none, "1" stdout, "2" stderr, "3" both;
// or "0:3,1:1" for single ranks.
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

// --local-ranks-filter: "0,2". Empty: all of them.
Result<std::set<LocalRank>> parse_local_ranks(std::string_view text);

// "key=value,key=value" of --rdzv-conf.
Result<std::map<std::string, std::string>> parse_rdzv_conf(std::string_view text);

// --on-join: "now", "checkpoint" or "restart".
Result<OnJoin> parse_on_join(std::string_view text);

// --umask: octal, from 0 to 777.
Result<std::optional<unsigned>> parse_umask(std::string_view text);

// --env: "NAME=value". What tells a worker its place is not to be given by hand.
Result<std::pair<std::string, std::string>> parse_variable(std::string_view text);
// --log-max-bytes: "100M", with K, M or G as powers of 1024; 0: no limit.
Result<std::uint64_t> parse_log_bytes(std::string_view text);

// --log-format: "text" or "json".
enum class LogFormat { kText, kJson };
inline constexpr EnumNames<LogFormat, 2> kLogFormatWords{
    {{LogFormat::kText, "text"}, {LogFormat::kJson, "json"}}};
Result<LogFormat> parse_log_format(std::string_view text);

// --worker-store: who serves the store that the workers of a generation meet at.
enum class WorkerStore {
  kAgent,  // the agent of rank 0's node, before any worker starts
  kRank0,  // rank 0 itself, as torchrun's workers did before PyTorch 2.5
};
inline constexpr EnumNames<WorkerStore, 2> kWorkerStoreWords{
    {{WorkerStore::kAgent, "agent"}, {WorkerStore::kRank0, "rank0"}}};
Result<WorkerStore> parse_worker_store(std::string_view text);

// --bind: a word of kBindWords.
Result<BindPolicy> parse_bind(std::string_view text);
// --numa-binding: a word of kNumaBindingWords.
Result<BindPolicy> parse_numa_binding(std::string_view text);

// --gpu-visibility: which GPUs each worker sees. kAll: those that its agent sees.
enum class GpuVisibility { kAll, kOwn };
inline constexpr EnumNames<GpuVisibility, 2> kGpuVisibilityWords{{
    {GpuVisibility::kAll, "all"},
    {GpuVisibility::kOwn, "own"},
}};
Result<GpuVisibility> parse_gpu_visibility(std::string_view text);

// --- the whole command line ---------------------------------------------------------------------

// What is to be done: run the job, or tell something and start nothing.
enum class LaunchCommand { kRun, kHelp, kVersion, kPrintConfig, kDryRun, kShowBinding };
constexpr bool needs_program(LaunchCommand command) { return command == LaunchCommand::kRun || command == LaunchCommand::kDryRun; }

// Between the first signal to workers and SIGKILL; Slurm's own patience (KillWait) is 30 s, so below it.
inline constexpr Duration kDefaultGrace = std::chrono::seconds(30);
inline constexpr Duration kDefaultGraceUnderSlurm = std::chrono::seconds(10);

// "USR1": a signal that can be caught.
Result<int> parse_checkpoint_signal(std::string_view text);

struct LaunchOptions {
  LaunchCommand command = LaunchCommand::kRun;
  std::string config_file;  // empty: none
  NodeRange nodes;
  SlotCount slots;
  std::optional<int> node_rank;
  std::string rdzv_endpoint;  // host[:port], empty where not given
  std::string rdzv_id = kDefaultJobId;
  std::string rdzv_backend;  // empty where not given
  std::map<std::string, std::string> rdzv_conf;
  bool standalone = false;
  int max_restarts = 0;
  RestartRules restart_rules;
  OnJoin on_join = OnJoin::kNow;
  int node_failures = kDefaultNodeFailures;
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
  std::string store_allow;  // addresses and networks, not looked at yet; empty: none
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
  std::set<LocalRank> shown_ranks;  // whose output the console gets; empty: everyone's
  std::string role = kDefaultRole;
  std::string report_file;  // empty: none
  std::optional<Duration> grace;
  std::optional<Duration> shutdown_timeout;  // as given; plan_rendezvous() sees that grace is not
  std::string line_prefix;                   // of -t; empty: the variable, or torchrun's own
  Duration hang_timeout{};            // zero: nobody looks for hangs
  int checkpoint_signal = 0;          // 0: none
  std::string directory;              // --chdir, where workers run; empty: where ddprun runs
  std::optional<unsigned> file_mask;  // --umask
  std::vector<std::pair<std::string, std::string>> variables;  // --env, over all others
  std::string program;
  std::vector<std::string> args;
  std::vector<std::string> remarks;  // options that were given and do nothing here, and why

  bool has_agent_store() const { return worker_store != WorkerStore::kRank0; }
  bool shows(LocalRank rank) const { return shown_ranks.empty() || shown_ranks.contains(rank); }
  BindPolicy bind_policy() const { return bind.value_or(numa_binding.value_or(BindPolicy::kNone)); }
};

// How the nodes find each other.
struct Rendezvous {
  enum class Mode {
    kLocal,    // one node: nothing listens but the store, on loopback
    kDynamic,  // a service at meeting_point; the node whose address it is starts it if nobody has
    kStatic,   // torchrun's static way: node rank 0 serves everything there
  };
  Mode mode = Mode::kLocal;
  HostPort meeting_point;
  Duration join_timeout = kDefaultJoinTimeout;
  Duration last_call = kDefaultLastCall;
  std::vector<std::string> remarks;  // options that were given and do nothing here, and why
};

inline constexpr std::uint16_t kDefaultRdzvPort = 29400;  // as torchrun

// Where a node that serves for the whole job has to listen: "*", or its loopback address alone.
// Only what the user wrote tells: on Debian a host's own name leads, there, to 127.0.1.1, where
// nobody else arrives. A job of one node listens where its endpoint leads.
struct ServiceAddress {
  std::string host;      // as given
  std::string resolved;  // the address of this host that it leads to, numeric
};
std::string listening_host(const ServiceAddress& address, const NodeRange& nodes);

// Checks that the options on output fit together. The error names the option; what does nothing is
// said in options.remarks.
Result<void> check_output(LaunchOptions& options);

// Checks that the options fit together and says how the nodes meet. The error names the option.
Result<Rendezvous> plan_rendezvous(const LaunchOptions& options);

}  // namespace ddprun
