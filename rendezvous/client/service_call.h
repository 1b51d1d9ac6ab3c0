// call_service(): sends one request to a rendezvous service without being an agent.
// rendezvous/protocol/core/user_request.h lists the requests. The caller proves its identity
// as an agent does: by the job's key, by munge or by a certificate.
//
// It is for programs without an event loop: it blocks. Every wait has a deadline, except the
// wait for followed output. While output is followed, the loss of the service's host is
// noticed. Any thread may call it.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "base/host_port.h"
#include "base/result.h"
#include "base/secret.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

class Munge;

struct ServiceCall {
  HostPort address;
  std::vector<HostPort> others = {};  // other services with the same state
  // Returns the service that leads now. Asked if that at `address` cannot be asked any more. May be
  // empty.
  std::function<Result<HostPort>()> find_leader = nullptr;
  Secret key;                          // of the job; empty: none
  std::shared_ptr<const Munge> munge;  // null: without a key neither side proves its identity
  bool demands_proof = false;          // also from a service without a key
  TlsContextPtr tls;                   // of an agent; null: without TLS
  Duration to_answer = std::chrono::seconds(10);  // from the name look-up to the Answer
  Duration to_more = std::chrono::seconds(10);    // from one Answer to the next, unless followed
  // From the Answer to a stop to its End. nullopt: the End is not waited for.
  std::optional<Duration> to_end = {};
  // For kLogs, kFlight and kStacks: receives each Answer that is followed by another. It may block,
  // and the service waits for it. It returns false when the caller wants no more output.
  std::function<bool(const Answer&)> on_output = nullptr;
};

struct ServiceReply {
  HostPort address;  // of the service that has answered
  Answer answer;
  // The verdict of the job, which has ended. Set after a stop that was accepted and after
  // output that was followed.
  std::optional<Verdict> verdict;
  // Why the reply broke off after the request had been accepted.
  std::optional<Error> broke_off;
};

// Sends the request and returns the reply. Of several services the next one is asked if one of them
// does not lead or cannot be asked. The leader that a standby names is asked, too, if it must prove
// its identity or the request only reads. A request that changes something is not sent again if it
// may have arrived. Errors:
// kStopped      the service refused the caller or is not available now; the cause is the
//               service's text
// kConnection, kTimeout, kProtocol, kNotFound
//               the service could not be asked, or its answer did not come
// kUnsupported  the service's proof of identity is not sufficient
Result<ServiceReply> call_service(const ServiceCall& call, const UserRequest& request);

}  // namespace ddprun
