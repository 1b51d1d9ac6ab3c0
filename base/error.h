// Error: what every fallible function of ddprun hands back (inside a Result, base/result.h).
//
// It says what we were doing, with whom (rank, host:port, key, file), what went wrong, and how long
// we waited against how long we were allowed to. Callers add context with within(); whoever handles
// the error reports it, once. A value type; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace ddprun {

enum class ErrorKind {
  kInvalidArgument,  // the caller, or the user, gave something that cannot be meant
  kNotFound,         // a file, key, name or address does not exist
  kTimeout,          // a deadline passed
  kConnection,       // a connection could not be made, or broke
  kProtocol,         // the other side sent what it must not send
  kPeerLost,         // another rank or node is dead
  kStopped,          // the generation was stopped, or the group was aborted
  kResource,         // out of memory, space, descriptors, ports
  kCorrupt,          // stored data is damaged
  kUnsupported,      // right, but not available here
  kSystem,           // the operating system refused; see sys_errno
};

std::string_view to_text(ErrorKind kind);

struct Error {
  ErrorKind kind = ErrorKind::kSystem;
  std::string doing;  // "connect to store 10.0.0.1:29500", a verb and its object
  std::string cause;  // "connection refused"
  std::optional<Duration> waited;
  std::optional<Duration> allowed;
  int sys_errno = 0;
  int peer_rank = -1;  // kPeerLost: the rank that is gone, where it is known

  // One line, ready for a person: "connect to store 10.0.0.1:29500: connection refused (waited 2.0
  // s of 2.0 s)".
  std::string message() const;

  // The same error seen from one level up: "form process group: connect to ...".
  Error within(std::string_view what) &&;
};

// An Error from errno, with the system's words as the cause.
Error system_error(std::string doing, int sys_errno);

// A kInvalidArgument Error; within() says what was being done.
Error invalid_argument(std::string cause);

// A kTimeout Error.
Error timeout_error(std::string doing, std::string cause, Duration waited, Duration allowed);

}  // namespace ddprun
