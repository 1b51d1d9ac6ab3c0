#include "worker_lib/util/public_error.h"

namespace ddprun {

DistError::Kind public_kind(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return DistError::Kind::kInvalidArgument;
    case ErrorKind::kTimeout: return DistError::Kind::kTimeout;
    case ErrorKind::kConnection:
    case ErrorKind::kProtocol: return DistError::Kind::kConnection;
    case ErrorKind::kPeerLost: return DistError::Kind::kPeerLost;
    case ErrorKind::kStopped: return DistError::Kind::kStopped;
    case ErrorKind::kCorrupt: return DistError::Kind::kCorrupt;
    case ErrorKind::kUnsupported: return DistError::Kind::kUnsupported;
    case ErrorKind::kNotFound:
    case ErrorKind::kResource:
    case ErrorKind::kSystem: return DistError::Kind::kSystem;
  }
  return DistError::Kind::kSystem;
}

DistError to_dist_error(const Error& error) {
  return DistError(public_kind(error.kind), error.message(), error.peer_rank, error.waited,
                   error.allowed);
}

Error from_dist_error(const DistError& thrown, std::string_view doing) {
  Error error{.kind = ErrorKind::kSystem, .doing = std::string(doing), .cause = thrown.what()};
  switch (thrown.kind()) {
    case DistError::Kind::kInvalidArgument: error.kind = ErrorKind::kInvalidArgument; break;
    case DistError::Kind::kTimeout: error.kind = ErrorKind::kTimeout; break;
    case DistError::Kind::kConnection: error.kind = ErrorKind::kConnection; break;
    case DistError::Kind::kPeerLost: error.kind = ErrorKind::kPeerLost; break;
    case DistError::Kind::kStopped: error.kind = ErrorKind::kStopped; break;
    case DistError::Kind::kCorrupt: error.kind = ErrorKind::kCorrupt; break;
    case DistError::Kind::kUnsupported: error.kind = ErrorKind::kUnsupported; break;
    case DistError::Kind::kSystem: error.kind = ErrorKind::kSystem; break;
  }
  error.peer_rank = thrown.peer_rank();
  return error;
}

}  // namespace ddprun
