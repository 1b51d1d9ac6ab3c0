// What is said on an agent's socket, as lines of JSON: docs/wire_protocol.md, "The socket of an
// agent". Pure functions; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "launcher/control/core/request.h"
#include "rendezvous/http/status_page.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

inline constexpr std::size_t kMaxRequestBytes = 4096;

// A line, without its end.
std::string request_line(const ControlRequest& request);
// kInvalidArgument: what is wrong with it; kUnsupported: it is of another version of the protocol.
Result<ControlRequest> parse_request(std::string_view line);

// --- what an agent knows of its node -------------------------------------------------------------

struct WorkerView {
  Rank rank;
  LocalRank local_rank;
  pid_t pid = 0;      // 0: it was never there
  std::string state;  // "running", or how it ended
  TimePoint since;
  std::optional<std::int64_t> step = {};  // the last one that it has reported
};

struct NodeView {
  std::string job;
  std::string meets;  // where its nodes meet; empty: it has no others
  std::string host;
  pid_t pid = 0;  // of the ddprun that the user started
  std::string program;
  TimePoint started;
  AgentPhase phase = AgentPhase::kIdle;
  Generation generation{-1};
  std::optional<TimePoint> generation_since;
  std::optional<Assignment> assignment;  // of this generation
  int max_restarts = 0;
  Duration grace{};
  std::string log_directory;  // empty: there is none
  std::vector<WorkerView> workers;
};

// The answer to kWho.
std::string who_line(const NodeView& node, const Moment& now);
// The answer to kStatus. page: the service's, of this job; else why there is none.
std::string status_line(const NodeView& node, const Moment& now, const Result<std::string>& page);

// --- other answers -------------------------------------------------------------------------------

// It is done, or begun; or nothing was done, and text says why.
enum class Outcome { kDone, kRefused };
std::string outcome_line(Outcome outcome, std::string_view text);
// The job's part on this node is over.
std::string ended_line(int exit_code, std::string_view text);
// Lines of a worker.
enum class OutputStream { kOut, kErr };
struct OutputSource {
  Rank rank;
  OutputStream stream = OutputStream::kOut;
};
std::string output_line(const OutputSource& source, std::string_view bytes);
// What follows is of the generation that the node runs.
std::string generation_line(const NodeView& node);
// So many bytes of output were left out, because the reader was slow.
std::string dropped_line(std::uint64_t bytes);

}  // namespace ddprun
