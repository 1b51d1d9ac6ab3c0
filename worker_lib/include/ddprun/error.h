// DistError: the one exception type that ddprun's public functions throw.
//
// what() is one line that names the operation, the other side (rank, address, key, file), the
// cause, and the time waited against the time allowed. A value type; any thread.
#pragma once

#if __cplusplus < 202002L
#error "ddprun needs C++20: compile with -std=c++20 (CMake: set(CMAKE_CXX_STANDARD 20))"
#include "ddprun/needs -std=c++20"  // a missing file, so that the compiler stops here
#endif

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>

namespace ddprun {

class DistError : public std::runtime_error {
 public:
  enum class Kind {
    kInvalidArgument,  // the caller gave an invalid value
    kTimeout,          // a deadline passed
    kConnection,       // a connection could not be made, or broke
    kPeerLost,         // another rank is dead; peer_rank() says which, if known
    kStopped,          // the group was aborted or the generation was stopped
    kCorrupt,          // stored data is damaged
    kUnsupported,      // valid, but not available here
    kSystem,           // the operating system, or another library, failed
  };

  DistError(Kind kind, const std::string& what, int peer_rank = -1,
            std::optional<std::chrono::nanoseconds> waited = {},
            std::optional<std::chrono::nanoseconds> allowed = {})
      : std::runtime_error(what),
        kind_(kind),
        peer_rank_(peer_rank),
        waited_(waited),
        allowed_(allowed) {}

  Kind kind() const noexcept { return kind_; }
  int peer_rank() const noexcept { return peer_rank_; }  // -1: no single rank is to blame
  std::optional<std::chrono::nanoseconds> waited() const noexcept { return waited_; }
  std::optional<std::chrono::nanoseconds> allowed() const noexcept { return allowed_; }

 private:
  Kind kind_;
  int peer_rank_;
  std::optional<std::chrono::nanoseconds> waited_;
  std::optional<std::chrono::nanoseconds> allowed_;
};

}  // namespace ddprun
