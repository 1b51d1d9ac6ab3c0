#include "launcher/cluster/local_tasks.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/deadline.h"
#include "base/peer_user.h"
#include "base/poll_until.h"
#include "base/read_all.h"

namespace ddprun {
namespace {

constexpr Duration kOthersCome = std::chrono::seconds(10);
constexpr Duration kBetweenTries = std::chrono::milliseconds(20);
constexpr const char* kOnlyOne = " (if only one of the tasks is ddprun, add --no-detect)";

struct Address {
  sockaddr_un address{};
  socklen_t size = 0;

  explicit Address(const std::string& job_id) {
    const std::string name = concat("ddprun-task-", geteuid(), "-", job_id);
    address.sun_family = AF_UNIX;  // a name that begins with \0 is abstract, not a file
    const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
    std::copy_n(name.begin(), length, address.sun_path + 1);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Result<UniqueFd> open_socket(int more) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | more, 0));
  if (!fd.valid()) return system_error("open a socket", errno);
  return fd;
}

}  // namespace

Result<LocalTasks> LocalTasks::listen(const std::string& job_id, int others) {
  Result<UniqueFd> listener = open_socket(SOCK_NONBLOCK);
  if (!listener) return listener.error();
  const Address address(job_id);
  if (bind(listener->get(), address.get(), address.size) != 0 ||
      ::listen(listener->get(), others) != 0) {
    return system_error("listen for the other tasks of job " + job_id, errno);
  }
  return LocalTasks(std::move(*listener), others);
}

void LocalTasks::end(int exit_code) {
  const TimePoint until = BootClock::now() + kOthersCome;
  std::array<pollfd, 1> watched{{{listener_.get(), POLLIN, 0}}};
  std::vector<UniqueFd> others;
  while (static_cast<int>(others.size()) < others_ && poll_until(watched, until)) {
    UniqueFd other(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (other.valid() && peer_user(other.get()) == geteuid()) others.push_back(std::move(other));
  }
  // A task that got the code may start the next ddprun of its script. That one finds another agent.
  listener_.reset();
  for (const UniqueFd& other : others) {
    // A task that was killed meanwhile needs no code.
    send(other.get(), &exit_code, sizeof exit_code, MSG_NOSIGNAL);
  }
}

Result<int> wait_for_agent(const std::string& job_id, Duration patience) {
  const Address address(job_id);
  const Deadline deadline(patience);
  while (true) {
    const Result<UniqueFd> agent = open_socket(0);
    if (!agent) return agent.error();
    if (connect(agent->get(), address.get(), address.size) == 0) {
      if (peer_user(agent->get()) != geteuid())
        return Error{.kind = ErrorKind::kConnection, .cause = "it belongs to another user"};
      int exit_code = 0;
      const ssize_t size =
          read_all(agent->get(), reinterpret_cast<char*>(&exit_code), sizeof exit_code);
      if (size == sizeof exit_code) return exit_code;
      return Error{.kind = ErrorKind::kConnection, .cause = "it was killed"};
    }
    if (deadline.passed()) {
      return Error{.kind = ErrorKind::kTimeout,
                   .cause = concat("it did not come within ", patience, kOnlyOne)};
    }
    std::this_thread::sleep_for(kBetweenTries);  // a name gives no event when it appears
  }
}

}  // namespace ddprun
