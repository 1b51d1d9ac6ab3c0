// What agents and the rendezvous service say to each other, as plain values.
//
// The protocol is level-triggered. An agent says what IS on its node (AgentStatus), again after
// every change and in the Hello of every connection; the service says what SHALL BE there (a
// Directive), again whenever it changed or the agent's status does not fit it. Messages may be
// repeated, and one that was lost with a connection is made up for by the next Hello: no side keeps
// a history of the other.
//
// rendezvous/protocol/control_codec.h turns these into JSON frames; docs/wire_protocol.md describes them.
// Value types; any thread.
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
#include "base/enum_names.h"
#include "base/host_port.h"
#include "base/ids.h"
#include "base/is_control.h"
#include "base/worker_env.h"
#include "rendezvous/protocol/core/code_ranges.h"
#include "rendezvous/protocol/core/hang_analysis.h"
#include "rendezvous/protocol/core/user_request.h"
#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

inline constexpr int kControlProtocol = 1;
inline constexpr int kUnknownProtocol = -1;  // of a Hello whose number is none

// What a message may say. The decoder refuses more, so that nothing behind it has to fear what a
// stranger sends; the command line refuses it before.
inline constexpr int kMaxNodes = 32767;
inline constexpr int kMaxSlots = 65536;
inline constexpr std::int64_t kMaxGeneration = std::int64_t{1} << 53;
inline constexpr std::size_t kMaxNameBytes = 1024;        // ids, hosts, addresses, versions
inline constexpr std::size_t kMaxAddresses = 256;         // of a node
inline constexpr std::size_t kMaxPeersBytes = 800'000;    // of all addresses in an assignment
inline constexpr std::size_t kMaxTextBytes = 64 * 1024;   // what is written for people
inline constexpr std::size_t kMaxPageBytes = 400 * 1024;  // of an Answer or an OutputPage
static_assert(std::int64_t{kMaxNodes} * kMaxSlots <= std::numeric_limits<int>::max(),
              "every rank of the largest world is an int");

// Why an id, a host, an address or a version is none that may be shown beside others' words; what
// follows "it ". Empty: it is one.
inline std::string why_no_name(std::string_view text) {
  if (text.size() > kMaxNameBytes) {
    return "is longer than " + std::to_string(kMaxNameBytes) + " bytes";
  }
  return std::any_of(text.begin(), text.end(), is_control) ? "has a control character" : "";
}

// How many nodes a job takes. 1 <= min <= max <= kMaxNodes.
struct NodeRange {
  int min = 1;
  int max = 1;
  friend bool operator==(const NodeRange&, const NodeRange&) = default;
};
// As --nnodes has it.
inline std::string to_text(NodeRange nodes) {
  if (nodes.min == nodes.max) return std::to_string(nodes.min);
  return std::to_string(nodes.min) + ":" + std::to_string(nodes.max);
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
  // The last one that was started here, or the newest that a node without a part in it was told of
  // (Wait); -1: none yet.
  Generation generation{-1};
  std::vector<WorkerEnd> ends;   // workers of `generation` that ended other than well; an excerpt
  int more_ends = 0;             // that are not in the excerpt (keep_likeliest)
  std::uint16_t store_port = 0;  // where this node would serve the next generation's store
  int leaving = 0;  // signal that told this agent to end; it leaves when nothing is left
  // Checkpoints that workers of `generation` have announced in the store that this node hosts.
  std::int64_t checkpoints = 0;
  bool asked_to_save = false;  // workers of this node were asked to save and to leave
  // The highest step that a worker of `generation` has reported; nullopt: none has.
  std::optional<std::int64_t> step = {};
  // What the workers of `generation` were seen doing when one of them had done nothing for longer than
  // --hang-timeout, or when the service asked (Stop::look); empty: nobody has looked.
  std::vector<WorkerSnapshot> snapshots = {};
  // Workers of `generation` that had reached their end before this node was stopped. Told when the
  // node's workers are being stopped or are gone: one that others needed may be why these failed.
  std::vector<LocalRank> left = {};

  friend bool operator==(const AgentStatus&, const AgentStatus&) = default;
};

// When a node that comes to a running job with room becomes part of it.
enum class OnJoin {
  kNow,         // everything is stopped and formed again with it, at once
  kCheckpoint,  // the same, when the workers announce their next checkpoint
  kRestart,     // when the next generation is formed for another reason
};

inline constexpr EnumNames<OnJoin, 3> kOnJoinWords{
    {{OnJoin::kNow, "now"}, {OnJoin::kCheckpoint, "checkpoint"}, {OnJoin::kRestart, "restart"}}};

// What a job asks for that does not say otherwise. The times are torchrun's.
inline constexpr Duration kDefaultJoinTimeout = std::chrono::seconds(600);
inline constexpr Duration kDefaultLastCall = std::chrono::seconds(30);
inline constexpr int kDefaultNodeFailures = 3;

// Which restarts count, and which failures get none (rendezvous/membership/core/restart_budget.h).
struct RestartRules {
  Duration window{};            // zero: every restart of the job counts
  CodeRanges final_codes = {};  // at most kMaxCodeRanges
  bool on_progress = false;  // a step beyond the last failure's makes all restarts available again
  friend bool operator==(const RestartRules&, const RestartRules&) = default;
};

// What all agents of a job must agree on.
struct JobSpec {
  std::string id = kDefaultJobId;
  NodeRange nodes;
  int max_restarts = 0;
  RestartRules restart_rules = {};
  Duration join_timeout = kDefaultJoinTimeout;
  Duration last_call = kDefaultLastCall;
  OnJoin on_join = OnJoin::kNow;
  // A node whose workers were the first to fail in so many generations gives way to any other.
  int node_failures = kDefaultNodeFailures;
};

struct NodeSpec {
  std::string agent_id;  // random, one per agent process
  std::string host;
  int slots = 1;                 // workers it will start
  std::optional<int> node_rank;  // --node-rank, where given
  std::string address;           // numeric; where other nodes can reach this one
  // Numeric: from where its workers may call, beside `address`; at most kMaxAddresses.
  std::vector<std::string> other_addresses = {};
  bool tells_output = false;  // it understands TellOutput; those of older versions do not
  bool tells_flight = false;  // and TellOutput::flight
};

// In front of why a job was not restarted although it had restarts left, in Verdict::headline.
inline constexpr std::string_view kNotRestarted = "; not restarted: ";
inline constexpr std::string_view kStopped = "the job was stopped: ";  // somebody asked for it

// How a generation, or the whole job, ended.
struct Verdict {
  bool success = false;
  int exit_code = 0;
  std::string headline;         // one line, for people
  std::vector<WorkerEnd> ends;  // of the last generation, the first failure first; an excerpt
  int more_ends = 0;            // that are not in the excerpt (keep_likeliest)
  std::vector<std::string> seen = {};  // of a generation that hung: what each rank was doing
  Generation generation{-1};
  int restarts_used = 0;
  int max_restarts = 0;

  friend bool operator==(const Verdict&, const Verdict&) = default;
};

// A node's part in a generation: a Directive.
struct Assignment {
  Generation generation{0};
  NodeRank node_rank{0};
  int node_count = 1;
  Rank first_rank{0};
  int world_size = 1;
  HostPort store;
  int restart_count = 0;
  std::optional<int> restarts_left = {};  // as the budget is now; nullopt: an older service
  std::string reason;                     // why this generation was formed
  Duration lease = kDefaultLease;         // a node that is silent for so long counts as lost
  // For the store's host alone, node rank 0: the addresses of all nodes of the generation.
  std::vector<std::string> peers = {};
  // Of the generation before, where it failed: for node rank 0, and for the node that failed first.
  std::optional<Verdict> failure = {};

  friend bool operator==(const Assignment&, const Assignment&) = default;
};

// Agent to service.
struct Hello {
  int protocol = kControlProtocol;
  std::string version;   // of ddprun, for people
  std::string instance;  // of the last Welcome: which job of this id the agent belongs to
  JobSpec job;
  NodeSpec node;
  AgentStatus status;
  // The last one it was given: what a service that was restarted has forgotten.
  std::optional<Assignment> assignment;
};
struct Heartbeat {
  std::uint64_t number = 0;
};
// The last word of an agent: nothing of it is left on its node.
struct Leave {
  int signal = 0;      // that told the agent to end; 0: see reason
  std::string reason;  // in words
};
using AgentMessage = std::variant<Hello, AgentStatus, Heartbeat, Leave, UserRequest, OutputPage>;

// Service to agent.
struct Welcome {
  std::string instance;  // this job, as distinct from earlier and later ones of the same id
  Duration heartbeat_interval{};
  Duration agent_patience{};  // without an answer for this long, the agent kills its workers
  bool embedded = false;      // the service lives in another node's agent and dies with it
  std::string host;           // where the service runs
};
struct Refused {
  std::string reason;
};
// Nothing will be heard of this service for a while, as it ends to be started again, or it admits
// nobody now. The agent's patience is what it ever was; it goes on trying.
struct Silence {
  std::string reason;
};
struct HeartbeatAck {
  std::uint64_t number = 0;
  // When the agent is to send the next one, about an interval from now; zero: after the interval.
  Duration next{};
};

// Directives; Assignment is one, too.
struct Wait {
  std::string reason;  // "1 of 2 nodes are here"
  // The newest one of the job, which this node may have no part in; -1: none, or an older service.
  // Whoever waits remembers it for a service that has forgotten.
  Generation generation{-1};
};
struct Stop {
  Generation generation{0};
  std::string reason;
  bool at_once = false;  // without grace: a person has asked for it
  bool look = false;     // at what the workers do, before they are stopped: some hang
};
struct End {
  Verdict verdict;
};
using Directive = std::variant<Wait, Assignment, Stop, End>;

using ServiceMessage = std::variant<Welcome, Refused, Silence, HeartbeatAck, Wait, Assignment, Stop,
                                    End, Answer, ForwardSignal, TellOutput>;

// What of the service's messages says what shall be; nullopt for the others.
inline std::optional<Directive> directive_of(const ServiceMessage& message) {
  return std::visit(
      [](const auto& one) -> std::optional<Directive> {
        if constexpr (std::is_constructible_v<Directive, decltype(one)>) return one;
        return std::nullopt;
      },
      message);
}

// Why an agent of another protocol is refused.
inline std::string other_protocol(int theirs, const std::string& version) {
  const std::string ddprun = version.empty() ? "" : " (ddprun " + version + ")";
  return "this service speaks control protocol " + std::to_string(kControlProtocol) +
         ", this agent" + ddprun + " speaks " +
         (theirs == kUnknownProtocol ? "another one" : std::to_string(theirs)) +
         ": use the same ddprun on all nodes";
}

}  // namespace ddprun
