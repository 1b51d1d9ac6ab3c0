#include "base/error.h"

#include <cerrno>
#include <system_error>

#include "base/enum_names.h"

namespace ddprun {

namespace {

constexpr EnumNames<ErrorKind, 11> kErrorKindWords{
    {{ErrorKind::kInvalidArgument, "invalid argument"},
     {ErrorKind::kNotFound, "not found"},
     {ErrorKind::kTimeout, "timeout"},
     {ErrorKind::kConnection, "connection"},
     {ErrorKind::kProtocol, "protocol"},
     {ErrorKind::kPeerLost, "peer lost"},
     {ErrorKind::kStopped, "stopped"},
     {ErrorKind::kResource, "resource"},
     {ErrorKind::kCorrupt, "corrupt"},
     {ErrorKind::kUnsupported, "unsupported"},
     {ErrorKind::kSystem, "system"}}};

}  // namespace

std::string_view to_text(ErrorKind kind) { return enum_name(kErrorKindWords, kind); }

std::string Error::message() const {
  std::string text = doing;
  if (!text.empty() && !cause.empty()) text += ": ";
  text += cause;
  if (waited && allowed) {
    text += " (waited " + to_text(*waited) + " of " + to_text(*allowed) + ")";
  } else if (waited) {
    text += " (after " + to_text(*waited) + ")";
  }
  return text;
}

Error Error::within(std::string_view what) && {
  doing = doing.empty() ? std::string(what) : std::string(what) + ": " + doing;
  return std::move(*this);
}

std::string errno_text(int sys_errno) { return std::generic_category().message(sys_errno); }

Error system_error(std::string doing, int sys_errno) {
  ErrorKind kind = ErrorKind::kSystem;
  switch (sys_errno) {
    case ENOENT:
    case ENOTDIR: kind = ErrorKind::kNotFound; break;
    case ENOMEM:
    case ENOSPC:
    case ENOBUFS:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
    case EDQUOT: kind = ErrorKind::kResource; break;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ENOTCONN:
    case EHOSTUNREACH:
    case ENETUNREACH: kind = ErrorKind::kConnection; break;
    case ETIMEDOUT: kind = ErrorKind::kTimeout; break;
    default: break;
  }
  return Error{.kind = kind,
               .doing = std::move(doing),
               .cause = errno_text(sys_errno),
               .sys_errno = sys_errno};
}

Error invalid_argument(std::string cause) {
  return Error{.kind = ErrorKind::kInvalidArgument, .cause = std::move(cause)};
}

Error invalid_value(std::string_view value, std::string_view why) {
  return invalid_argument("invalid value '" + std::string(value) + "' (" + std::string(why) + ")");
}

Error timeout_error(std::string doing, std::string cause, Duration waited, Duration allowed) {
  return Error{.kind = ErrorKind::kTimeout,
               .doing = std::move(doing),
               .cause = std::move(cause),
               .waited = waited,
               .allowed = allowed};
}

}  // namespace ddprun
