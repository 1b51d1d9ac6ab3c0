#include "worker_lib/util/error_bridge.h"

#include <c10/util/Exception.h>

#include <new>
#include <string>

namespace ddprun {
namespace {

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace

DistError within(const DistError& failure, const std::string& doing) {
  return {failure.kind(), doing + ": " + failure.what(), failure.peer_rank(), failure.waited(),
          failure.allowed()};
}

void refuse(const std::string& what, DistError::Kind kind, int peer_rank) {
  throw DistError(kind, what, peer_rank);
}

Error error_in_flight(std::string_view doing) {
  Error error{.kind = ErrorKind::kSystem, .doing = std::string(doing)};
  try {
    throw;
  } catch (const DistError& thrown) {
    return from_dist_error(thrown, doing);
  } catch (const c10::Error& thrown) {
    error.cause = first_line(thrown.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    error.kind = ErrorKind::kResource;
    error.cause = "out of memory";
  } catch (const std::exception& thrown) {
    error.cause = first_line(thrown.what());
  } catch (...) {
    error.cause = "an exception that is not a std::exception";
  }
  return error;
}

}  // namespace ddprun
