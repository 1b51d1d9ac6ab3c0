// UserRequest: what a person asks of a running job by `ddprun stop`, `restart`, `signal`,
// `status`, `logs`, `flight` or `stacks`, as plain values.
//
// A UserRequest reaches the service in one of two ways. An agent of the job forwards it for a
// user of the agent's socket (launcher/control/socket.h). Or it is the first message of a
// connection of its own, without a Hello. Either way one Answer replies to it. A connection of
// its own ends with the Answer. After an accepted stop, though, the End follows as soon as the
// job has ended. A UserRequest is not state: if its connection is lost, the request is lost, and
// the client gets an error.
//
// Output of workers, their flight records and their stacks are requested on a connection of their
// own. The service replies by many Answers and, if output is followed, by the End of the job. It
// asks the agents by OutputDirective, and they reply by OutputPage
// (rendezvous/membership/core/output_inquiries.h).
//
// Value types; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/enum_names.h"
#include "base/ids.h"

namespace ddprun {

inline constexpr int kDefaultLogLines = 100;
inline constexpr int kMaxLogLines = 1'000'000;

struct UserRequest {
  enum class What {
    kStatus,   // returns what the service knows of the job, or of all jobs if none is named
    kStop,     // ends the job, on all nodes
    kRestart,  // ends the generation and forms the next one; uses no budget
    kSignal,   // sends `signal` to the workers, or only to `rank`
    kLogs,     // returns output of the workers, or only of `rank`
    kFlight,   // returns flight records of the workers, or only of `rank`
    kStacks,   // returns stacks of the workers, or only of `rank`
  };
  What what = What::kStatus;
  std::uint64_t number = 0;  // the Answer repeats it
  std::string job;           // on a connection of its own; an agent's request concerns its own job
  std::string by;            // the user who asks, for people: "ada on node0"
  int signal = 0;
  std::optional<Rank> rank = {};
  bool at_once = false;  // kStop: workers are killed without a grace period
  // kLogs: how many earlier lines of each stream to return, and whether to go on until the job
  // ends.
  int lines = kDefaultLogLines;
  bool follow = false;

  friend bool operator==(const UserRequest&, const UserRequest&) = default;
};

inline constexpr EnumNames<UserRequest::What, 7> kUserRequestWords{
    {{UserRequest::What::kStatus, "status"},
     {UserRequest::What::kStop, "stop"},
     {UserRequest::What::kRestart, "restart"},
     {UserRequest::What::kSignal, "signal"},
     {UserRequest::What::kLogs, "logs"},
     {UserRequest::What::kFlight, "flight"},
     {UserRequest::What::kStacks, "stacks"}}};

// Returns true if nodes answer this request, page by page.
constexpr bool is_answered_by_nodes(UserRequest::What what) {
  return what == UserRequest::What::kLogs || what == UserRequest::What::kFlight ||
         what == UserRequest::What::kStacks;
}

struct Answer {
  std::uint64_t number = 0;
  bool done = false;  // the request was accepted; false: nothing has changed, and text says why
  std::string text;   // one line, for people
  // For kStatus: a JSON object (rendezvous/http/status_page.h). For kLogs, kFlight and
  // kStacks: lines of JSON with line ends, as agents write them. Otherwise empty.
  std::string page;
  // kLogs, kFlight and kStacks: more Answers follow; text is a separate notice, or empty.
  bool more = false;
  // kSignal: the job has no workers on any node, and too few nodes to start some.
  bool no_workers = false;

  friend bool operator==(const Answer&, const Answer&) = default;
};

// ForwardSignal: asks an agent to send the signal to its workers of this generation, or only to
// `rank`.
struct ForwardSignal {
  Generation generation{0};
  int signal = 0;
  std::optional<Rank> rank = {};

  friend bool operator==(const ForwardSignal&, const ForwardSignal&) = default;
};

// OutputDirective: asks an agent for output, flight records or stacks of its workers. The agent
// reports that it has data and waits for its turn. So neither side ever holds more than a few pages
// for a slow reader.
struct OutputDirective {
  enum class What {
    kBegin,  // of the workers, or of `rank`; answered at once
    kNext,   // asks for the next page
    kEnd,    // the reader is gone
  };
  What what = What::kBegin;
  std::uint64_t inquiry = 0;  // numbered by the service; another number on a new connection
  std::optional<Rank> rank = {};
  int lines = 0;        // as in the UserRequest
  bool follow = false;  // as in the UserRequest
  bool flight = false;  // kBegin: flight records instead of output
  bool stacks = false;  // kBegin: stacks instead of output

  friend bool operator==(const OutputDirective&, const OutputDirective&) = default;
};

inline constexpr EnumNames<OutputDirective::What, 3> kOutputDirectiveWords{
    {{OutputDirective::What::kBegin, "begin"},
     {OutputDirective::What::kNext, "next"},
     {OutputDirective::What::kEnd, "end"}}};

// Limit for a page of several lines. A page of one line may be longer.
inline constexpr std::size_t kOutputPageBytes = 64 * 1024;

// OutputPage: output of an agent's workers.
struct OutputPage {
  std::uint64_t inquiry = 0;
  std::string lines;      // as in Answer::page; empty except at its turn and at the very end
  bool is_ready = false;  // data for the next turn is already there
  bool is_last = false;   // no page follows

  friend bool operator==(const OutputPage&, const OutputPage&) = default;
};

}  // namespace ddprun
