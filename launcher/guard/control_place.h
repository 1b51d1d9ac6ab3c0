// Where agents have their sockets, and how those are found: one file for each, in a directory of the
// user's own that nobody else may enter.
//
// The directory is the first of these that is there:
//   $XDG_RUNTIME_DIR/ddprun and /run/user/<uid>/ddprun, where the one above it is the user's
//   $TMPDIR/ddprun-<uid>, or /tmp/ddprun-<uid>
// It is made with the first socket in it and removed with the last one. One that belongs to another user,
// that others may enter, or that is a symbolic link is never used: a directory beside it with the same
// name and random letters behind it is used instead, and is found by them.
//
// Any thread; the state is the file system's.
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
  std::string remark;  // why it is another one than people expect; empty: it is not
};

// Returns the directory for new sockets. Makes nothing.
ControlHome find_control_home();

// Where the socket of the ddprun with this process id goes: <directory>/<job id>.<pid>, of the id
// what a file name may be. Makes nothing.
std::string control_socket_path(const ControlHome& home, std::string_view job, pid_t pid);
// The same, in find_control_home().
std::string control_socket_path(std::string_view job, pid_t pid);

// Listens there, with mode 0600 from the first moment; nobody finds a socket that does not listen
// yet. The error says what this user may not do, or whose the directory is.
Result<UniqueFd> listen_for_control(const std::string& path);

// Removes the socket, and its directory if nothing else is in it. An empty path, or what is not
// there, is passed over.
void remove_control_socket(const std::string& path);

struct ControlPlace {
  std::string path;
  pid_t pid = 0;  // of the ddprun that its user started
};
// Those of this user's, by process id; one that a ddprun has left that was killed with all its guards
// is removed on the way.
std::vector<ControlPlace> find_control_sockets();

// A connection, with every wait the caller's: the descriptor does not block. kNotFound: nobody
// listens there any more. kConnection: it is there, but takes nobody now.
Result<UniqueFd> connect_for_control(const std::string& path);

}  // namespace ddprun
