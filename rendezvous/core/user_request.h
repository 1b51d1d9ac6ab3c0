// What a person asks of a running job, by `ddprun stop`, `restart`, `signal` or `status`, as plain
// values.
//
// A UserRequest reaches the service from an agent of the job, whose user has asked it on its socket
// (launcher/control_socket.h), or as the first message of a connection of its own, which says no
// Hello. Either way it is answered by one Answer; a connection of its own ends with that, but after
// a stop that was accepted, when the End follows as soon as the job has ended. A UserRequest is no
// state: one that is lost with its connection is lost, and whoever asked is told so.
//
// Value types; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"
#include "base/words.h"

namespace ddprun {

struct UserRequest {
  enum class What {
    kStatus,   // tells what the service knows of the job; of all jobs where none is named
    kStop,     // ends the job, on all nodes
    kRestart,  // ends the generation and forms the next one; uses no budget
    kSignal,   // passes `signal` on to the workers, or to the one of `rank`
  };
  What what = What::kStatus;
  std::uint64_t number = 0;  // the Answer repeats it
  std::string job;           // on a connection of its own; an agent's is its job
  std::string by;            // who asks, for people: "ada on node0"
  int signal = 0;
  std::optional<Rank> rank = {};
  bool at_once = false;  // kStop: workers are killed, without their grace

  friend bool operator==(const UserRequest&, const UserRequest&) = default;
};

inline constexpr Words<UserRequest::What, 4> kUserRequestWords{
    {{UserRequest::What::kStatus, "status"},
     {UserRequest::What::kStop, "stop"},
     {UserRequest::What::kRestart, "restart"},
     {UserRequest::What::kSignal, "signal"}}};

struct Answer {
  std::uint64_t number = 0;
  bool done = false;  // it is under way; else nothing has changed, and text says why
  std::string text;   // one line, for people
  std::string page;   // of kStatus: a JSON object (rendezvous/status_page.h), else empty

  friend bool operator==(const Answer&, const Answer&) = default;
};

// To an agent: pass the signal on to its workers of this generation, or to the one of `rank`.
struct PassOn {
  Generation generation{0};
  int signal = 0;
  std::optional<Rank> rank = {};

  friend bool operator==(const PassOn&, const PassOn&) = default;
};

}  // namespace ddprun
