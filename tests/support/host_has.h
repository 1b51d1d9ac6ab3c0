// What tests need of this machine. A test that needs what is missing is skipped with that reason.
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>

#include "base/unique_fd.h"
#include "rendezvous/net/listen.h"

namespace ddprun::testing_support {

inline constexpr const char* kNoLocalhost = "this machine has no localhost in /etc/hosts";
inline constexpr const char* kNoPseudoTerminals = "this machine has no /dev/pts";

// Returns whether tests of IPv6 can run on this machine.
inline bool host_has_ipv6() { return listen_tcp({.host = "::1", .port = 0}).has_value(); }

// Returns whether the name localhost leads to an address.
inline bool host_has_localhost() {
  addrinfo* found = nullptr;
  if (getaddrinfo("localhost", nullptr, nullptr, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

// Returns whether a process can open a pseudo terminal.
inline bool host_has_pseudo_terminals() {
  const UniqueFd ours(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!ours.valid() || grantpt(ours.get()) != 0 || unlockpt(ours.get()) != 0) return false;
  const char* name = ptsname(ours.get());
  return name && UniqueFd(open(name, O_RDWR | O_NOCTTY | O_CLOEXEC)).valid();
}

}  // namespace ddprun::testing_support
