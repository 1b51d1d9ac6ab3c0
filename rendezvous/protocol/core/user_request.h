// What a person asks of a running job, by `ddprun stop`, `restart`, `signal`, `status`, `logs` or
// `flight`, as plain values.
//
// A UserRequest reaches the service from an agent of the job, whose user has asked it on its socket
// (launcher/control/socket.h), or as the first message of a connection of its own, which says no
// Hello. Either way it is answered by one Answer; a connection of its own ends with that, but after
// a stop that was accepted, when the End follows as soon as the job has ended. A UserRequest is no
// state: one that is lost with its connection is lost, and whoever asked is told so.
//
// Output of workers, or their flight records, are asked for on a connection of their own. It is answered
// by many Answers, and, where output is followed, by the End of the job. The service asks the agents by TellOutput, which
// answer by OutputPage (rendezvous/membership/core/output_inquiries.h).
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
    kStatus,   // tells what the service knows of the job; of all jobs where none is named
    kStop,     // ends the job, on all nodes
    kRestart,  // ends the generation and forms the next one; uses no budget
    kSignal,   // passes `signal` on to the workers, or to the one of `rank`
    kLogs,     // tells what the workers write, or the one of `rank`
    kFlight,   // tells their flight records, or that of the one
  };
  What what = What::kStatus;
  std::uint64_t number = 0;  // the Answer repeats it
  std::string job;           // on a connection of its own; an agent's is its job
  std::string by;            // who asks, for people: "ada on node0"
  int signal = 0;
  std::optional<Rank> rank = {};
  bool at_once = false;  // kStop: workers are killed, without their grace
  // kLogs: how many lines of each stream that were written before; whether to go on until the job
  // ends.
  int lines = kDefaultLogLines;
  bool follow = false;

  friend bool operator==(const UserRequest&, const UserRequest&) = default;
};

inline constexpr EnumNames<UserRequest::What, 6> kUserRequestWords{
    {{UserRequest::What::kStatus, "status"},
     {UserRequest::What::kStop, "stop"},
     {UserRequest::What::kRestart, "restart"},
     {UserRequest::What::kSignal, "signal"},
     {UserRequest::What::kLogs, "logs"},
     {UserRequest::What::kFlight, "flight"}}};

// What the nodes tell, page by page.
constexpr bool is_told_by_nodes(UserRequest::What what) {
  return what == UserRequest::What::kLogs || what == UserRequest::What::kFlight;
}

struct Answer {
  std::uint64_t number = 0;
  bool done = false;  // it is under way; else nothing has changed, and text says why
  std::string text;   // one line, for people
  // Of kStatus: a JSON object (rendezvous/http/status_page.h). Of kLogs and kFlight: lines of JSON with their
  // ends, as agents write them. Else empty.
  std::string page;
  bool more = false;  // of kLogs and kFlight: others follow; text is news of its own, or empty

  friend bool operator==(const Answer&, const Answer&) = default;
};

// To an agent: pass the signal on to its workers of this generation, or to the one of `rank`.
struct ForwardSignal {
  Generation generation{0};
  int signal = 0;
  std::optional<Rank> rank = {};

  friend bool operator==(const ForwardSignal&, const ForwardSignal&) = default;
};

// To an agent: what the service wants of its workers' output, or flight records. The agent says that it has something
// to tell, and waits for its turn, so that neither side ever keeps more than a few pages for a
// reader who is slow.
struct TellOutput {
  enum class What {
    kBegin,  // of the workers, or of the one of `rank`; answered at once
    kNext,   // it is its turn: the next page
    kEnd,    // nobody wants it any more
  };
  What what = What::kBegin;
  std::uint64_t inquiry = 0;  // a number of the service's; others on another connection
  std::optional<Rank> rank = {};
  int lines = 0;        // as in the UserRequest
  bool follow = false;  // likewise
  bool flight = false;  // kBegin: not the output, but the flight records

  friend bool operator==(const TellOutput&, const TellOutput&) = default;
};

inline constexpr EnumNames<TellOutput::What, 3> kTellOutputWords{{{TellOutput::What::kBegin, "begin"},
                                                              {TellOutput::What::kNext, "next"},
                                                              {TellOutput::What::kEnd, "end"}}};

// Of a page of several lines; one line may have more.
inline constexpr std::size_t kOutputPageBytes = 64 * 1024;

// From an agent: of its workers' output.
struct OutputPage {
  std::uint64_t inquiry = 0;
  std::string lines;  // as in Answer::page; empty but where it was its turn, and at the very end
  bool is_ready = false;  // there is more already, for its next turn
  bool is_last = false;   // nothing more will come

  friend bool operator==(const OutputPage&, const OutputPage&) = default;
};

}  // namespace ddprun
