// peer_user(): the user of the process at the other end of a Unix socket. Any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string_view>

namespace ddprun {

// Returns whether the id stands for one user only. A user namespace need not have an id for every
// user. All users without one appear there under the overflow id. uid_map: the text of
// /proc/self/uid_map.
bool names_one_user(uid_t user, uid_t overflow, std::string_view uid_map);
// Returns the same for this process's user namespace.
bool names_one_user(uid_t user);

// Returns the user of the process at the other end of a Unix socket, at the time when that
// process connected or began to listen (SO_PEERCRED). nullopt: the kernel does not say, or the id
// stands for many users and this process may not inspect the peer.
std::optional<uid_t> peer_user(int unix_socket);

}  // namespace ddprun
