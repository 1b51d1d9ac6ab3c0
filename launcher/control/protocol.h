// Encodes and parses the messages on an agent's socket, which are lines of JSON
// (docs/reference/wire_protocol.md, "The socket of an agent"). Pure functions; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "rendezvous/protocol/core/control_message.h"
#include "rendezvous/protocol/core/hang_analysis.h"
#include "rendezvous/protocol/core/rank_row.h"

namespace ddprun {

struct Moment;

inline constexpr std::size_t kMaxRequestBytes = 4096;

// Return the line for a request, without its line end. The second one asks for the node's view
// only (who_line()); the service is not asked.
std::string request_line(const UserRequest& request);
std::string who_request_line(const std::string& by);
// Parses a request; nullopt: it is one of who_request_line(). Returns kInvalidArgument, with the
// reason, for a malformed request. Returns kUnsupported for a request of another protocol
// version.
Result<std::optional<UserRequest>> parse_request(std::string_view line);

// --- what an agent knows about its node ----------------------------------------------------------

struct WorkerView {
  Rank rank;
  LocalRank local_rank;
  pid_t pid = 0;      // 0: it never existed
  std::string state;  // "running", or how it ended
  TimePoint since;
  std::optional<std::int64_t> step = {};  // the last step that it reported
};

struct NodeView {
  std::string job;
  std::string meets;  // where its nodes meet; empty: the job has only this node
  std::string host;
  pid_t pid = 0;  // of the ddprun that the user started
  std::string program;
  TimePoint started;
  AgentPhase phase = AgentPhase::kIdle;
  Generation generation{-1};
  std::optional<TimePoint> generation_since;
  std::optional<Assignment> assignment;  // in this generation
  int max_restarts = 0;
  Duration grace{};
  std::string log_directory;  // empty: no log directory
  std::vector<WorkerView> workers;
  std::vector<RankRow> ranks = {};  // only for status_line()
};

// Returns the answer to who_request_line().
std::string who_line(const NodeView& node, const Moment& now);
// Returns the answer to kStatus. page: the service's page of this job, or the error that says
// why it is missing.
std::string status_line(const NodeView& node, const Moment& now, const Result<std::string>& page);

// --- other answers -------------------------------------------------------------------------------

// kDone: the request was carried out, or has begun. kRefused: nothing was done, and the text
// says why.
enum class Outcome { kDone, kRefused };
std::string outcome_line(Outcome outcome, std::string_view text);
// Says that the job's part on this node is over.
std::string ended_line(int exit_code, std::string_view text);
// Carries lines that a worker wrote.
enum class OutputStream { kOut, kErr };
struct OutputSource {
  Rank rank;
  OutputStream stream = OutputStream::kOut;
};
std::string output_line(const OutputSource& source, std::string_view bytes);
// Carries the stack of a worker.
std::string stack_line(const WorkerSnapshot& worker);
// Says why something that was asked for is not there.
std::string missing_line(std::string_view what, std::string_view why);
// Says that the lines that follow belong to the generation that the node runs now.
std::string generation_line(const NodeView& node);
// Says that this many bytes of output were left out because the reader was slow.
std::string dropped_line(std::uint64_t bytes);

}  // namespace ddprun
