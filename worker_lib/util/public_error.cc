#include "worker_lib/util/public_error.h"

#include <algorithm>
#include <iterator>

namespace ddprun {

namespace {

struct Kinds {
  ErrorKind internal;
  DistError::Kind shown;
};
// If several internal kinds have one public kind, it is converted back to the first of them.
constexpr Kinds kKinds[] = {
    {ErrorKind::kInvalidArgument, DistError::Kind::kInvalidArgument},
    {ErrorKind::kTimeout, DistError::Kind::kTimeout},
    {ErrorKind::kConnection, DistError::Kind::kConnection},
    {ErrorKind::kProtocol, DistError::Kind::kConnection},
    {ErrorKind::kPeerLost, DistError::Kind::kPeerLost},
    {ErrorKind::kStopped, DistError::Kind::kStopped},
    {ErrorKind::kCorrupt, DistError::Kind::kCorrupt},
    {ErrorKind::kUnsupported, DistError::Kind::kUnsupported},
    {ErrorKind::kSystem, DistError::Kind::kSystem},
    {ErrorKind::kNotFound, DistError::Kind::kSystem},
    {ErrorKind::kResource, DistError::Kind::kSystem},
};

}  // namespace

DistError::Kind public_kind(ErrorKind kind) {
  const auto* const found = std::ranges::find(kKinds, kind, &Kinds::internal);
  return found == std::end(kKinds) ? DistError::Kind::kSystem : found->shown;
}

DistError to_dist_error(const Error& error) {
  return DistError(public_kind(error.kind), error.message(), error.peer_rank, error.waited,
                   error.allowed);
}

Error from_dist_error(const DistError& thrown, std::string_view doing) {
  const auto* const found = std::ranges::find(kKinds, thrown.kind(), &Kinds::shown);
  return {.kind = found == std::end(kKinds) ? ErrorKind::kSystem : found->internal,
          .doing = std::string(doing),
          .cause = thrown.what(),
          .peer_rank = thrown.peer_rank()};
}

}  // namespace ddprun
