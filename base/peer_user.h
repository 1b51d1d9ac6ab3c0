// Returns the user of the process at the other end of a Unix socket. In a user namespace one id can
// stand for many users. Any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string_view>

namespace ddprun {

// Returns whether the id means one user. The kernel gives the overflow id for each user that a user
// namespace has no id for. uid_map: as /proc/self/uid_map has it.
bool names_one_user(uid_t user, uid_t overflow, std::string_view uid_map);
// Returns the same for this process's namespace.
bool names_one_user(uid_t user);

// Returns the user of the process at the other end of a Unix socket, at the time when that
// process connected or began to listen (SO_PEERCRED). nullopt: the kernel does not say. Also if
// the id stands for many users and this process may not inspect the peer.
std::optional<uid_t> user_behind(int unix_socket);

}  // namespace ddprun
