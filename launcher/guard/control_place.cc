#include "launcher/guard/control_place.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "base/parse_number.h"
#include "base/process_stat.h"
#include "base/random_id.h"
#include "base/small_file.h"
#include "base/worker_env.h"

namespace ddprun {
namespace {

constexpr std::size_t kJobBytesInName = 48;
constexpr int kBacklog = 256;
// How often to retry. Another ddprun removes the directory with its own last socket. That may
// happen after this one has created the directory and before it uses it.
constexpr int kTries = 10;

bool is_own_directory(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
}

// Returns the possible directories. New sockets go to the first one.
std::vector<std::string> directories() {
  const std::string user = std::to_string(geteuid());
  std::vector<std::string> found;
  const auto add = [&](const std::string& path) {
    if (std::ranges::count(found, path) == 0) found.push_back(path);
  };
  for (const std::string& run : {environment_text("XDG_RUNTIME_DIR"), "/run/user/" + user}) {
    if (run.starts_with('/') && is_own_directory(run)) add(run + "/ddprun");
  }
  const std::string temporary = environment_text("TMPDIR");
  if (temporary.starts_with('/')) add(temporary + "/ddprun-" + user);
  add("/tmp/ddprun-" + user);
  return found;
}

std::string directory_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Returns the directories that replace `home` if another user has created it. They are in the
// same place. Their names end in random digits, so that no other user can create them in
// advance.
std::vector<std::string> stand_ins_of(const std::string& home) {
  const std::string base = directory_of(home);
  const std::string prefix = home.substr(base.size() + 1) + ".";
  std::vector<std::string> found;
  // Each run does this in /tmp, which may have very many entries: no path is made for each of them.
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(base.c_str()), &closedir);
  while (const dirent* entry = directory ? readdir(directory.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name.starts_with(prefix)) found.push_back(base + "/" + std::string(name));
  }
  return found;
}

// Opens a directory for sockets. Refuses one that another user owns or may enter.
Result<UniqueFd> open_directory(const std::string& path) {
  const std::string doing = "use " + path + " for the socket of ddprun's commands";
  UniqueFd directory(open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory.valid()) return system_error(doing, errno);
  struct stat status {};
  if (fstat(directory.get(), &status) != 0) return system_error(doing, errno);
  const auto refuse = [&](std::string why) {
    return Error{.kind = ErrorKind::kInvalidArgument, .doing = doing, .cause = std::move(why)};
  };
  if (status.st_uid != geteuid()) {
    return refuse("it belongs to user " + std::to_string(status.st_uid) + ", not to user " +
                  std::to_string(geteuid()));
  }
  if ((status.st_mode & 077) != 0) return refuse("other users may enter it: chmod 700");
  return directory;
}

// Returns the socket address of a name in an open directory. The address is short, however long
// the path is. It refers to the same directory even if that is renamed.
sockaddr_un address_in(const UniqueFd& directory, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = "/proc/self/fd/" + std::to_string(directory.get()) + "/" + name;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

Result<UniqueFd> listen_in(const std::string& path) {
  const std::string home = directory_of(path);
  if (mkdir(home.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_error("make " + home + " for the socket of ddprun's commands", errno);
  }
  const Result<UniqueFd> directory = open_directory(home);
  if (!directory) return directory.error();
  const std::string doing = "listen at " + path;
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return system_error(doing, errno);
  // bind() gives this mode to the socket file.
  if (fchmod(listener.get(), 0600) != 0) return system_error(doing, errno);
  const std::string name = name_of(path);
  const std::string hidden = "." + name;
  // A process with the same pid may have left this file.
  unlinkat(directory->get(), hidden.c_str(), 0);
  const sockaddr_un address = address_in(*directory, hidden);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener.get(), kBacklog) != 0 ||
      renameat(directory->get(), hidden.c_str(), directory->get(), name.c_str()) != 0) {
    const int failed = errno;
    unlinkat(directory->get(), hidden.c_str(), 0);
    return system_error(doing, failed);
  }
  return listener;
}

// Returns whether the process runs. A zombie does not count.
bool is_alive(pid_t pid) {
  const std::optional<ProcessStat> process = process_stat(pid);
  return process && process->state != 'Z' && process->state != 'X';
}

}  // namespace

ControlHome find_control_home() {
  const std::string home = directories().front();
  const Result<UniqueFd> directory = open_directory(home);
  if (directory || directory.error().sys_errno == ENOENT) return {home, ""};
  const std::string& why = directory.error().cause;
  for (const std::string& one : stand_ins_of(home)) {
    if (open_directory(one)) return {one, home + " is not used: " + why + "; using " + one};
  }
  const std::string other = home + "." + random_hex(8);
  return {other,
          home + " is not used for the socket of ddprun's commands: " + why + "; using " + other};
}

std::string control_socket_path(const ControlHome& home, std::string_view job, pid_t pid) {
  std::string name(job.substr(0, kJobBytesInName));
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && c != '-'; }, '_');
  return home.path + "/" + name + "." + std::to_string(pid);
}

Result<UniqueFd> listen_for_control(const std::string& path) {
  Result<UniqueFd> listener = listen_in(path);
  for (int i = 1; i < kTries && !listener && listener.error().sys_errno == ENOENT; ++i) {
    listener = listen_in(path);
  }
  return listener;
}

void remove_control_socket(const std::string& path) {
  if (path.empty()) return;
  const std::string home = directory_of(path);
  if (const Result<UniqueFd> directory = open_directory(home)) {
    unlinkat(directory->get(), name_of(path).c_str(), 0);
    unlinkat(directory->get(), ("." + name_of(path)).c_str(), 0);
    rmdir(home.c_str());
  }
}

std::vector<ControlPlace> find_control_sockets() {
  std::vector<ControlPlace> found;
  std::vector<std::string> homes = directories();
  for (const std::string& home : directories()) {
    for (std::string& one : stand_ins_of(home)) homes.push_back(std::move(one));
  }
  for (const std::string& home : homes) {
    if (!open_directory(home)) continue;
    for (const std::string entry : entries_of(home)) {
      const std::string name = name_of(entry);
      const auto pid = parse_number<pid_t>(name.substr(name.rfind('.') + 1));
      if (name.starts_with('.') || !pid || *pid <= 0) continue;
      found.push_back({entry, *pid});
    }
  }
  std::erase_if(found, [](const ControlPlace& place) {
    if (is_alive(place.pid)) return false;
    // The agent may briefly outlive the guardian, or be in another PID namespace. Then it
    // answers.
    const Result<UniqueFd> connection = connect_for_control(place.path);
    if (connection || connection.error().kind != ErrorKind::kNotFound) return false;
    remove_control_socket(place.path);
    return true;
  });
  std::ranges::sort(found, {}, &ControlPlace::pid);
  return found;
}

Result<UniqueFd> connect_for_control(const std::string& path) {
  const Result<UniqueFd> directory = open_directory(directory_of(path));
  if (!directory) return directory.error();
  UniqueFd connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connection.valid()) return system_error("connect to " + path, errno);
  const sockaddr_un address = address_in(*directory, name_of(path));
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return connection;
  }
  Error error = system_error("connect to " + path, errno);
  const bool is_gone = error.sys_errno == ENOENT || error.sys_errno == ECONNREFUSED;
  error.kind = is_gone ? ErrorKind::kNotFound : ErrorKind::kConnection;
  return error;
}

}  // namespace ddprun
