#include "base/peer_user.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "base/small_file.h"

namespace ddprun {
namespace {

// Returns the overflow id; the kernel's default if /proc has no value.
uid_t overflow_user() {
  constexpr uid_t kUsual = 65534;
  const std::string text = text_of("/proc/sys/kernel/overflowuid");
  const auto number = static_cast<uid_t>(std::strtoul(text.c_str(), nullptr, 10));
  return number == 0 ? kUsual : number;
}

// Returns whether this process may inspect another one: one of the same user, or with
// CAP_SYS_PTRACE any. The kernel lets only such a process read the link /proc/PID/exe.
bool may_inspect(pid_t process) {
  if (process <= 0) return false;  // the peer's PID namespace is not visible from here
  const std::string program = "/proc/" + std::to_string(process) + "/exe";
  char first = 0;
  return readlink(program.c_str(), &first, 1) > 0;
}

}  // namespace

bool names_one_user(uid_t user, uid_t overflow, std::string_view uid_map) {
  if (user != overflow) return true;
  // A line has the first id inside, the first id outside, and how many ids follow each other.
  std::istringstream lines{std::string(uid_map)};
  std::uint64_t mapped = 0;
  for (std::uint64_t inside = 0, outside = 0, count = 0; lines >> inside >> outside >> count;) {
    mapped += count;
  }
  constexpr std::uint64_t kEveryUser = 0xffffffff;
  return mapped >= kEveryUser;
}

bool names_one_user(uid_t user) {
  return names_one_user(user, overflow_user(), text_of("/proc/self/uid_map"));
}

std::optional<uid_t> peer_user(int unix_socket) {
  ucred other{};
  socklen_t length = sizeof other;
  if (getsockopt(unix_socket, SOL_SOCKET, SO_PEERCRED, &other, &length) != 0) return std::nullopt;
  if (names_one_user(other.uid)) return other.uid;
  // Of the users with the overflow id, one whose process may be inspected counts as the own user.
  if (may_inspect(other.pid)) return geteuid();
  return std::nullopt;
}

}  // namespace ddprun
