// The messages between agents and the rendezvous service, as plain values.
//
// The protocol is level-triggered. An agent reports the state of its node (AgentStatus) after
// every change and in the Hello of every connection. The service sends the state that it wants
// there (a Directive) whenever that changed or the agent's status does not match it. Messages
// may be repeated. The next Hello replaces a message that was lost with its connection. So
// neither side keeps a history of the other.
//
// rendezvous/protocol/control_codec.h turns these values into JSON frames.
// docs/reference/wire_protocol.md describes them. Value types; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/concat.h"
#include "base/enum_names.h"
#include "base/host_port.h"
#include "base/ids.h"
#include "base/is_control.h"
#include "base/worker_env.h"
#include "rendezvous/protocol/core/code_ranges.h"
#include "rendezvous/protocol/core/hang_analysis.h"
#include "rendezvous/protocol/core/job_times.h"
#include "rendezvous/protocol/core/rank_row.h"
#include "rendezvous/protocol/core/step_report.h"
#include "rendezvous/protocol/core/user_request.h"
#include "rendezvous/protocol/core/verdict.h"
#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

inline constexpr int kControlProtocol = 1;
inline constexpr int kUnknownProtocol = -1;  // for a Hello whose protocol is not an int

// Limits of a message. The decoder rejects larger values, so that all later code is safe from
// peers that are not authenticated. The command line rejects them earlier.
inline constexpr int kMaxNodes = 32767;
inline constexpr int kMaxSlots = 65536;
inline constexpr std::int64_t kMaxGeneration = std::int64_t{1} << 53;
inline constexpr std::size_t kMaxNameBytes = 1024;        // ids, hosts, addresses, versions
inline constexpr std::size_t kMaxAddresses = 256;         // of a node
inline constexpr std::size_t kMaxPeersBytes = 800'000;    // of all addresses in an assignment
inline constexpr std::size_t kMaxTextBytes = 64 * 1024;   // texts for people
inline constexpr std::size_t kMaxPageBytes = 400 * 1024;  // of an Answer or an OutputPage
static_assert(std::int64_t{kMaxNodes} * kMaxSlots <= std::numeric_limits<int>::max(),
              "every rank of the largest world is an int");

// Returns why an id, a host, an address or a version may not be shown within other text, as what
// follows "it ". Empty: it may be shown.
inline std::string why_no_name(std::string_view text) {
  if (text.size() > kMaxNameBytes) {
    return concat("is longer than ", kMaxNameBytes, " bytes");
  }
  return std::ranges::any_of(text, is_control) ? "has a control character" : "";
}

// The number of nodes that a job takes. 1 <= min <= max <= kMaxNodes.
struct NodeRange {
  int min = 1;
  int max = 1;
  friend bool operator==(const NodeRange&, const NodeRange&) = default;
};
// Returns the range in the notation of --nnodes.
inline std::string to_text(NodeRange nodes) {
  if (nodes.min == nodes.max) return std::to_string(nodes.min);
  return concat(nodes.min, ":", nodes.max);
}

enum class AgentPhase {
  kIdle,      // no process of any generation is left on this node; store_port is open
  kRunning,   // workers of `generation` run
  kStopping,  // workers of `generation` are being ended
  kFinished,  // every worker of `generation` ended with 0 and nothing is left
};

inline constexpr EnumNames<AgentPhase, 4> kAgentPhaseWords{{{AgentPhase::kIdle, "idle"},
                                                            {AgentPhase::kRunning, "running"},
                                                            {AgentPhase::kStopping, "stopping"},
                                                            {AgentPhase::kFinished, "finished"}}};

struct AgentStatus {
  AgentPhase phase = AgentPhase::kIdle;
  // The last generation that was started here, or a newer one without this node that a Wait
  // named. -1: none yet.
  Generation generation{-1};
  std::vector<WorkerEnd> ends;   // workers of `generation` that failed; an excerpt
  int more_ends = 0;             // number of ends that are not in the excerpt (keep_likeliest)
  std::uint16_t store_port = 0;  // on which this node would serve the store of the next generation
  int leaving = 0;  // signal that told this agent to end; it leaves when no process is left
  // The number of checkpoints that workers of `generation` have announced in the store that this
  // node hosts.
  std::int64_t checkpoints = 0;
  bool asked_to_save = false;  // workers of this node were asked to save and to leave
  // The highest step that a worker of `generation` has reported; nullopt: none.
  std::optional<std::int64_t> step = {};
  WorkTimes times = {};  // of the workers of `generation`
  // The state of the workers of `generation` when the agent inspected them. It does so when a
  // worker was inactive for longer than --hang-timeout, or when the service asks (Stop::look).
  // Empty: they were not inspected.
  std::vector<WorkerSnapshot> snapshots = {};
  // Workers of `generation` that had reached their end before this node was stopped. Set once
  // the node's workers are being stopped or are gone. Others may have failed because they still
  // needed such a worker.
  std::vector<LocalRank> left = {};
  // Why --node-check has found that this node must not run workers, in one line. Empty: it may.
  std::string unfit = {};
  // What is wrong with the log files of its workers, in one line. Empty: nothing is.
  std::string log_trouble = {};

  friend bool operator==(const AgentStatus&, const AgentStatus&) = default;
};

// OnJoin: when a new node joins a running job that has room for it.
enum class OnJoin {
  kNow,         // at once: all workers are stopped, and a generation with the new node is formed
  kCheckpoint,  // the same, when the workers announce their next checkpoint
  kRestart,     // when the next generation is formed for another reason
};

inline constexpr EnumNames<OnJoin, 3> kOnJoinWords{
    {{OnJoin::kNow, "now"}, {OnJoin::kCheckpoint, "checkpoint"}, {OnJoin::kRestart, "restart"}}};

// Defaults of a job. The times are those of torchrun.
inline constexpr Duration kDefaultJoinTimeout = std::chrono::seconds(600);
inline constexpr Duration kDefaultLastCall = std::chrono::seconds(30);
inline constexpr int kDefaultNodeFailures = 3;

// RestartRules: which restarts use budget, and which failures are not restarted
// (rendezvous/accounts/core/restart_budget.h).
struct RestartRules {
  Duration window{};            // zero: every restart of the job counts
  CodeRanges final_codes = {};  // at most kMaxCodeRanges
  // A step beyond that of the last failure makes all restarts available again.
  bool on_progress = false;
  friend bool operator==(const RestartRules&, const RestartRules&) = default;
};

// JobSpec: what all agents of a job must agree on.
struct JobSpec {
  std::string id = kDefaultJobId;
  NodeRange nodes;
  int max_restarts = 0;
  RestartRules restart_rules = {};
  Duration join_timeout = kDefaultJoinTimeout;
  Duration last_call = kDefaultLastCall;
  OnJoin on_join = OnJoin::kNow;
  // A node whose workers failed first in this many generations is replaced by any other node.
  int node_failures = kDefaultNodeFailures;
};

// ServiceTerm: the time during which one of several services with a common state in etcd leads. A
// later leader has a larger term. 0: a service without etcd.
using ServiceTerm = std::int64_t;

struct NodeSpec {
  std::string agent_id;  // random, one per agent process
  std::string host;
  int slots = 1;                 // number of workers it will start
  std::optional<int> node_rank;  // value of --node-rank, if given
  std::string address;           // numeric; other nodes reach this node there
  // Numeric addresses, besides `address`, from which its workers may connect; at most
  // kMaxAddresses.
  std::vector<std::string> other_addresses = {};
  bool supports_output = false;  // it understands OutputDirective; older versions do not
  bool supports_flight = false;  // it understands OutputDirective::flight
  bool supports_stacks = false;  // it understands OutputDirective::stacks
  bool supports_steps = false;   // it understands StepsDirective
};

// Assignment: a Directive that gives a node its part in a generation.
struct Assignment {
  Generation generation{0};
  NodeRank node_rank{0};
  int node_count = 1;
  Rank first_rank{0};
  int world_size = 1;
  HostPort store;
  int restart_count = 0;
  // Restarts that the budget still allows; nullopt: an older service.
  std::optional<int> restarts_left = {};
  std::string reason;              // why this generation was formed
  Duration lease = kDefaultLease;  // a node that is silent for this long counts as lost
  // Only for node rank 0, which hosts the store: the addresses of all nodes of the generation.
  std::vector<std::string> peers = {};
  // The verdict of the previous generation, if it failed. Only for node rank 0 and for the node
  // that failed first.
  std::optional<Verdict> failure = {};
  ServiceTerm term = 0;  // of the service that sends it

  friend bool operator==(const Assignment&, const Assignment&) = default;
};

// Agent to service.
struct Hello {
  int protocol = kControlProtocol;
  std::string version;   // of ddprun, for people
  std::string instance;  // from the last Welcome: which job of this id the agent belongs to
  JobSpec job;
  NodeSpec node;
  AgentStatus status;
  // The last assignment that the agent got. A restarted service may have forgotten it. Its term is
  // that in which the agent was served last.
  std::optional<Assignment> assignment;
  // The scheduler's job, if the agent looks for the service that runs for this job alone. Another
  // service must refuse it. Empty: the agent joins any service.
  std::string cluster_job = {};
};
struct Heartbeat {
  std::uint64_t number = 0;
  RankReport ranks = {};  // empty unless the service has asked for it (HeartbeatAck::is_watched)
};
// Leave: the last message of an agent. No process of it is left on its node.
struct Leave {
  int signal = 0;      // signal that told the agent to end; 0: see reason
  std::string reason;  // text for people
};
using AgentMessage =
    std::variant<Hello, AgentStatus, Heartbeat, Leave, UserRequest, OutputPage, StepReport>;

// Service to agent.
struct Welcome {
  std::string instance;  // distinguishes this job from earlier and later ones of the same id
  Duration heartbeat_interval{};
  Duration agent_patience{};  // if it gets no answer for this long, the agent kills its workers
  bool embedded = false;      // the service runs in another node's agent and ends with it
  std::string host;           // where the service runs
  bool own = false;           // the service runs for the agent's job alone; see Hello::cluster_job
  ServiceTerm term = 0;
};
struct Refused {
  std::string reason;
  // The service runs for the agent's job alone, so the agent need not look for it elsewhere.
  bool is_of_job = false;
  ServiceTerm term = 0;  // of the leader that refuses; 0: no leader is known to
};
// Silence: the service will not respond for a while, because it is being restarted, admits no
// agents now, or does not lead. The agent keeps retrying; its patience does not change.
struct Silence {
  std::string reason;
  std::string leader = {};  // HOST:PORT of the service that leads instead; empty: not known
};
struct HeartbeatAck {
  std::uint64_t number = 0;
  // When the agent must send the next heartbeat, about one interval from now. Zero: after the
  // interval.
  Duration next{};
  // A person looks at the job, so the next heartbeats should have the ranks. An older service
  // never asks.
  bool is_watched = false;
  // How often they should have them. Zero: every second, as older services want.
  Duration ranks_every{};
};

// Directives. Assignment is one, too.
struct Wait {
  std::string reason;  // "1 of 2 nodes are here"
  // The newest generation of the job, in which this node may have no part. -1: there is none, or
  // the service is older. A waiting node keeps it for a service that has forgotten it.
  Generation generation{-1};
  ServiceTerm term = 0;
};
struct Stop {
  Generation generation{0};
  std::string reason;
  bool at_once = false;  // without a grace period, because a user asked for it
  bool look = false;     // inspect the workers before they are stopped, because some hang
  ServiceTerm term = 0;
};
struct End {
  Verdict verdict;
  ServiceTerm term = 0;
  bool runs_end_commands = false;  // this agent runs --on-end and --on-failure, and no other one
};
using Directive = std::variant<Wait, Assignment, Stop, End>;

using ServiceMessage = std::variant<Welcome, Refused, Silence, HeartbeatAck, Wait, Assignment, Stop,
                                    End, Answer, ForwardSignal, OutputDirective, StepsDirective>;

// ToAgent: a message of the service with the agent that gets it.
struct ToAgent {
  std::string agent_id;
  ServiceMessage message;
};

// Returns the message as a Directive; nullopt if it is not one.
inline std::optional<Directive> directive_of(const ServiceMessage& message) {
  return std::visit(
      [](const auto& one) -> std::optional<Directive> {
        if constexpr (std::is_constructible_v<Directive, decltype(one)>) return one;
        return std::nullopt;
      },
      message);
}

// Returns the term of a Welcome, Refused or Directive; nullopt for other messages.
inline std::optional<ServiceTerm> term_of(const ServiceMessage& message) {
  return std::visit(
      [](const auto& one) -> std::optional<ServiceTerm> {
        if constexpr (requires { one.term; }) return one.term;
        return std::nullopt;
      },
      message);
}
// Sets the term of a Welcome, Refused or Directive. Other messages have none.
inline void set_term(ServiceMessage& message, ServiceTerm term) {
  std::visit(
      [term](auto& one) {
        if constexpr (requires { one.term; }) one.term = term;
      },
      message);
}

// Returns why an agent of another protocol is refused.
inline std::string other_protocol(int theirs, const std::string& version) {
  const std::string ddprun = version.empty() ? "" : " (ddprun " + version + ")";
  return concat("this service speaks control protocol ", kControlProtocol, ", this agent", ddprun,
                " speaks ", theirs == kUnknownProtocol ? "another one" : std::to_string(theirs),
                ": use the same ddprun on all nodes");
}

}  // namespace ddprun
