// What a user asks an agent on its socket (docs/how-to/control.md), as plain values. Any thread.
#pragma once

#include <optional>
#include <string>

#include "base/enum_names.h"
#include "base/ids.h"
#include "rendezvous/protocol/core/user_request.h"

namespace ddprun {

inline constexpr int kControlSocketProtocol = 1;

struct ControlRequest {
  enum class What { kWho, kStatus, kLogs, kStop, kRestart, kSignal, kFlight };
  What what = What::kWho;
  std::string by;  // the user who asks, as text for people: "ada on node0"
  int signal = 0;
  std::optional<Rank> rank = {};
  bool at_once = false;          // kStop: without grace
  bool follow = false;           // kLogs
  int lines = kDefaultLogLines;  // kLogs: earlier lines to send of each stream

  friend bool operator==(const ControlRequest&, const ControlRequest&) = default;
};

// kWho asks for the node's view only; the service is not asked.
inline constexpr EnumNames<ControlRequest::What, 7> kControlWords{
    {{ControlRequest::What::kWho, "who"},
     {ControlRequest::What::kStatus, "status"},
     {ControlRequest::What::kLogs, "logs"},
     {ControlRequest::What::kStop, "stop"},
     {ControlRequest::What::kRestart, "restart"},
     {ControlRequest::What::kSignal, "signal"},
     {ControlRequest::What::kFlight, "flight"}}};

// Returns the request for a service, which has the same words for the commands that it takes.
inline UserRequest for_service(const ControlRequest& request) {
  return {.what = parse_enum(kUserRequestWords, enum_name(kControlWords, request.what))
                      .value_or(UserRequest::What::kStatus),
          .by = request.by,
          .signal = request.signal,
          .rank = request.rank,
          .at_once = request.at_once,
          .lines = request.lines,
          .follow = request.follow};
}

}  // namespace ddprun
