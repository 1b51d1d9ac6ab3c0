// Control sockets: where agents create them and how commands find them. Each agent has one
// socket file, in a directory that only its user may enter.
//
// The directory is the first of these:
//   $XDG_RUNTIME_DIR/ddprun       if $XDG_RUNTIME_DIR belongs to the user
//   /run/user/<uid>/ddprun        if /run/user/<uid> belongs to the user
//   $TMPDIR/ddprun-<uid>          if TMPDIR is an absolute path
//   /tmp/ddprun-<uid>
//
// It is created with its first socket and removed with its last one. A directory is never used
// if it belongs to another user, if others may enter it, or if it is a symbolic link. Then a
// directory in the same place is used, with the same name plus a dot and random digits. Commands
// look for sockets in such directories too.
//
// Any thread. The state is in the file system.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

struct ControlHome {
  std::string path;    // the directory
  std::string remark;  // why it is not the usual directory; empty: it is
};

// Returns the directory for new sockets. Creates nothing.
ControlHome find_control_home();

// Returns the socket path of the ddprun with this process id: <directory>/<job id>.<pid>. The
// job id is cut to 48 bytes. Characters other than letters, digits, - and _ become _. Creates
// nothing.
std::string control_socket_path(const ControlHome& home, std::string_view job, pid_t pid);

// Creates the socket and listens on it. Its mode is 0600 from the start. It gets its name only
// once it listens, so that no command finds it earlier. The error says what this user may not
// do, or which user owns the directory.
Result<UniqueFd> listen_for_control(const std::string& path);

// Removes the socket, and its directory if it is empty then. Ignores an empty path and a missing
// file.
void remove_control_socket(const std::string& path);

struct ControlPlace {
  std::string path;
  pid_t pid = 0;  // of the ddprun process that the user started
};
// Returns the sockets of this user, ordered by process id. Removes sockets that were left when a
// ddprun was killed with all its guards.
std::vector<ControlPlace> find_control_sockets();

// Connects and returns a non-blocking descriptor; the caller does all the waiting. kNotFound:
// the listener is gone. kConnection: the socket exists but takes no connection now.
Result<UniqueFd> connect_for_control(const std::string& path);

}  // namespace ddprun
