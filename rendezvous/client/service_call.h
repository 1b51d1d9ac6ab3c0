// call_service(): asks a rendezvous service, once and without being an agent, for what
// rendezvous/protocol/core/user_request.h lists. Who asks proves who he is as an agent does: by the job's
// key, by munge, by a certificate.
//
// For programs without an event loop: it blocks, and every wait has a deadline, but for output that
// is followed: of that a host that has gone is noticed. Any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/host_port.h"
#include "base/result.h"
#include "base/secret.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

class Munge;

struct ServiceCall {
  HostPort address;
  Secret key;                          // of the job; empty: none
  std::shared_ptr<const Munge> munge;  // null: without a key neither side proves anything
  bool demands_proof = false;          // of a service without a key, too
  TlsContextPtr tls;                   // of an agent; null: without TLS
  Duration to_answer = std::chrono::seconds(10);  // from the look-up of the name to the Answer
  Duration to_end{};                              // and on to the End that follows a stop
  // Of kLogs: gets each Answer that others follow. It may block, and the service waits for it.
  // False: no more is wanted.
  std::function<bool(const Answer&)> on_output = nullptr;
};

struct ServiceReply {
  Answer answer;
  // After a stop that was accepted, and after output that was followed: of the job, which has
  // ended.
  std::optional<Verdict> verdict;
  // Why what was asked for broke off, after it had been accepted.
  std::optional<Error> broke_off;
};

// kStopped: the service refused, or puts off, whoever asks; the cause is its word. kConnection,
// kTimeout, kProtocol, kNotFound: it could not be asked, or its answer did not come. kUnsupported:
// its proof is not good enough.
Result<ServiceReply> call_service(const ServiceCall& call, const UserRequest& request);

}  // namespace ddprun
