// Error: the error that every fallible function of ddprun returns (inside a Result,
// base/result.h).
//
// It says what the function was doing, with whom (rank, host:port, key, file), and what went
// wrong. It also says how long it has waited, and how long it was allowed to. Callers add
// context with within(). The code that handles the error reports it, once. A value type; any
// thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace ddprun {

enum class ErrorKind {
  kInvalidArgument,  // the caller, or the user, gave an invalid value
  kNotFound,         // a file, key, name or address does not exist
  kTimeout,          // a deadline passed
  kConnection,       // a connection could not be made, or broke
  kProtocol,         // the other side sent something invalid
  kPeerLost,         // another rank or node is dead
  kStopped,          // the generation was stopped, or the group was aborted
  kResource,         // out of memory, space, descriptors, ports
  kCorrupt,          // stored data is damaged
  kUnsupported,      // valid, but not available here
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
  int peer_rank = -1;  // kPeerLost: the rank that is gone, if it is known

  // Returns one line for people: "connect to store 10.0.0.1:29500: connection refused (waited
  // 2.0 s of 2.0 s)".
  std::string message() const;

  // Returns the same error with the caller's context: "form process group: connect to ...".
  Error within(std::string_view what) &&;
};

// Returns the system's text for an errno.
std::string errno_text(int sys_errno);

// Makes an Error from errno. The cause is errno_text().
Error system_error(std::string doing, int sys_errno);

// Makes a kInvalidArgument Error; within() adds what was being done.
Error invalid_argument(std::string cause);

// Makes a kInvalidArgument Error: "invalid value 'x' (expected seconds, such as 30 or 0.5)".
// why: what is expected, or what is wrong.
Error invalid_value(std::string_view value, std::string_view why);

// Makes a kTimeout Error.
Error timeout_error(std::string doing, std::string cause, Duration waited, Duration allowed);

}  // namespace ddprun
